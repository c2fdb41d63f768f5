"""The end of a run on a disk that refuses."""

import io
import json
from pathlib import Path

import pytest

from rollart.atomic_files import AppendFile
from rollart.errors import StorageError
from rollart.observe.log import LogHeader
from rollart.observe.recorder import Recorder


def test_a_picture_or_a_row_that_cannot_be_kept_does_not_cost_the_summary(tmp_path: Path):
    shown = io.StringIO()
    recorder = Recorder(tmp_path, name="demo", steps=1, file=shown)
    recorder.open(LogHeader(seed=0))
    (tmp_path / "learning_curve.png").mkdir()
    recorder._trackers[0].close()
    full = AppendFile(Path("/dev/full"), what="metrics", warn=recorder.warn)
    recorder._trackers[0]._file = full
    recorder.evaluation(1, {"success_rate": 0.75})
    recorder.finish({"success_after": 0.75})
    with pytest.raises(StorageError, match=r"/dev/full: metrics cannot be written: .*No space"):
        recorder.close()
    assert json.loads((tmp_path / "summary.json").read_text()) == {"success_after": 0.75}
    said = " ".join(shown.getvalue().split())
    assert "warning: /dev/full: the disk is full: metrics waits in memory" in said
    assert "evaluation at step 1: success_rate 0.750" in said
    assert "warning: the learning curve was not written: " in said
