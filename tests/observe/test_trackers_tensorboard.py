"""What TensorBoard would read of a run, read back record by record."""

import struct
from pathlib import Path

from tensorboardX.proto import event_pb2

from rollart.observe.trackers import TensorBoardTracker


def scalars(file: Path) -> list[tuple[int, str, float]]:
    data, found = file.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        event = event_pb2.Event.FromString(data[12 : 12 + length])
        found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
        data = data[16 + length :]
    return found


def test_a_row_is_written_as_one_scalar_for_each_name_at_its_step(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(tmp_path)
    tracker.add({"step": 3, "reward": 0.5, "time/step_s": 2.0})
    tracker.add({"step": 4, "reward": 0.75})
    tracker.close()
    (file,) = tmp_path.iterdir()
    assert scalars(file) == [
        (3, "run/reward", 0.5),
        (3, "time/step_s", 2.0),
        (4, "run/reward", 0.75),
    ]
