import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rollart.errors import UserError
from rollart_robot.rendering import (
    Recording,
    film_frames,
    record,
    save_contact_sheet,
    save_film,
)
from rollart_robot.toy_env import ToyExpert


def chunks(states: np.ndarray, noise: np.ndarray, points: None = None) -> np.ndarray:
    actions = [ToyExpert().act(history[-1]) for history in states]
    return np.repeat(np.stack(actions)[:, None], noise.shape[1], axis=1)


def test_an_episode_becomes_a_gif_that_can_be_read(tmp_path: Path):
    [recording] = record(chunks, "toy-reach", [7], size=(96, 64), every=4)
    assert recording.success
    # The first state, every fourth one after it, and the last.
    assert len(recording.frames) == recording.length // 4 + 1 + (recording.length % 4 > 0)
    save_film(tmp_path / "new" / "play.gif", recording.frames)
    with Image.open(tmp_path / "new" / "play.gif") as film:
        assert film.format == "GIF"
        assert film.size == (96, 64)
        assert film.n_frames == len(recording.frames)
        film.seek(film.n_frames - 1)
        last = np.asarray(film.convert("RGB"), dtype=np.int64)
    assert np.abs(last - recording.frames[-1]).mean() < 3


def test_mp4_is_written_where_ffmpeg_is_and_explained_where_not(tmp_path: Path, monkeypatch):
    frames = [np.full((33, 47, 3), shade, dtype=np.uint8) for shade in (0, 100, 200)]
    if shutil.which("ffmpeg"):
        save_film(tmp_path / "play.mp4", frames)
        assert (tmp_path / "play.mp4").read_bytes()[4:8] == b"ftyp"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"play.mp4: MP4 needs ffmpeg .* or write a .gif"):
        save_film(tmp_path / "play.mp4", frames)


def test_ffmpeg_gets_the_frames_and_its_failure_is_passed_on(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program = tmp_path / "ffmpeg"
    program.write_text('#!/bin/sh\nfor last; do :; done\ncat > "$last"\n')
    program.chmod(0o755)
    frames = [np.full((2, 4, 3), shade, dtype=np.uint8) for shade in (1, 2)]
    save_film(tmp_path / "play.mp4", frames)
    assert (tmp_path / "play.mp4").read_bytes() == b"\x01" * 24 + b"\x02" * 24
    program.write_text("#!/bin/sh\necho no such codec >&2\nexit 1\n")
    with pytest.raises(UserError, match=r"ffmpeg failed: no such codec; write a .gif"):
        save_film(tmp_path / "play.mp4", frames)


def test_a_contact_sheet_frames_successes_green_and_failures_red(tmp_path: Path):
    frame = np.full((40, 60, 3), 128, dtype=np.uint8)
    recordings = [
        Recording(seed=seed, success=seed == 2, length=9, frames=(frame,)) for seed in (1, 2, 3)
    ]
    save_contact_sheet(tmp_path / "sheet.png", recordings, title="toy-reach", columns=2)
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (2 * 68, 2 * 66 + 18)
        corners = [sheet.getpixel((x, y)) for x, y in ((1, 20), (69, 20), (1, 86))]
    assert corners == [(218, 54, 51), (46, 160, 67), (218, 54, 51)]


def test_a_film_holds_the_end_of_each_episode_framed_by_its_outcome(tmp_path: Path):
    grey = np.full((60, 120, 3), 128, dtype=np.uint8)
    recordings = [
        Recording(seed=1, success=True, length=9, frames=(grey, grey)),
        Recording(seed=2, success=False, length=200, frames=(grey,)),
    ]
    frames = film_frames(recordings, held=3)
    assert len(frames) == 2 + 3 + 1 + 3
    # Numbered, not framed, until the episode ends.
    assert [frames[i][0, 0].tolist() for i in (0, 2, 5, 6)] == [
        [128, 128, 128],
        [46, 160, 67],
        [128, 128, 128],
        [218, 54, 51],
    ]
    assert frames[0].min(axis=2).max() > 200  # its number, in white
    assert (grey == 128).all()
    save_film(tmp_path / "play.gif", frames)
    with Image.open(tmp_path / "play.gif") as film:
        ends = list[list[int]]()
        for index in range(film.n_frames):
            film.seek(index)
            ends.append(list(film.convert("RGB").getpixel((0, 0))))  # type: ignore[arg-type]
    # The few pixels of an outcome keep their colours in the palette.
    assert np.abs(np.array(ends[1]) - [46, 160, 67]).max() < 12
    assert np.abs(np.array(ends[-1]) - [218, 54, 51]).max() < 12


def test_nothing_to_show_and_unknown_endings_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match="no frames"):
        save_film(tmp_path / "play.gif", [])
    with pytest.raises(UserError, match="no episodes"):
        save_contact_sheet(tmp_path / "sheet.png", [])
    with pytest.raises(UserError, match=r"films are .gif or .mp4"):
        save_film(tmp_path / "play.avi", [np.zeros((4, 4, 3), dtype=np.uint8)])
