"""The end of a run on a disk that refuses."""

import io
import json
from pathlib import Path

from rollart.observe.log import LogHeader
from rollart.observe.recorder import Recorder


def test_a_picture_or_a_row_that_cannot_be_kept_does_not_cost_the_summary(tmp_path: Path):
    shown = io.StringIO()
    recorder = Recorder(tmp_path, name="demo", steps=1, file=shown)
    recorder.open(LogHeader(seed=0))
    (tmp_path / "learning_curve.png").mkdir()
    recorder._trackers[0].close()
    recorder._trackers[0]._file = Path("/dev/full").open("w")  # noqa: SIM115 closed by the recorder
    recorder.evaluation(1, {"success_rate": 0.75})
    recorder.finish({"success_after": 0.75})
    recorder.close()
    assert json.loads((tmp_path / "summary.json").read_text()) == {"success_after": 0.75}
    said = " ".join(shown.getvalue().split())
    assert "warning: the evaluation at step 1 was not saved: /dev/full: metrics" in said
    assert "evaluation at step 1: success_rate 0.750" in said
    assert "warning: the learning curve was not written: " in said
