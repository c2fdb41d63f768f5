"""Films and contact sheets of episodes.

`record` plays a policy and keeps frames; `film_frames` joins the episodes, each with its number and
its outcome; `save_film` writes frames as a GIF, or as MP4 where ffmpeg is installed;
`save_contact_sheet` puts the last frame of each episode on one PNG. What succeeded is framed green,
what failed red.
"""

import io
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image as Pictures
from PIL import ImageDraw

from rollart.atomic_files import write_file
from rollart.errors import StorageError, UserError
from rollart_robot.envs import Image, RobotEnv
from rollart_robot.episodes import ChunkPolicy, PlaySettings, play_episodes

_GREEN, _RED = (46, 160, 67), (218, 54, 51)
_MARGIN, _LABEL = 4, 18
"""Pixels of a sheet round each picture, and of the line of text below it."""
_PALETTE_FRAMES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The frames of an episode.

    Example:
        >>> Recording(seed=7, success=True, length=53, frames=frames)  # frames: [240, 320, 3] each

    """

    seed: int
    success: bool
    length: int
    frames: tuple[Image, ...]

    @property
    def outcome(self) -> str:
        """What a person is shown of how it ended."""
        return f"{'success' if self.success else 'failure'}, {self.length} steps"


def record(
    act: ChunkPolicy,
    task: str,
    seeds: Sequence[int],
    *,
    settings: PlaySettings | None = None,
    size: tuple[int, int] = (320, 240),
    every: int = 3,
) -> tuple[Recording, ...]:
    """Play an episode for each seed; keep every n-th frame, the last one too, of this size.

    `size` is width and height. One environment draws at a time: each has an OpenGL context.
    """
    frames: list[list[Image]] = [[] for _ in seeds]
    steps = [0] * len(seeds)

    def watch(index: int, env: RobotEnv, is_last: bool) -> None:
        if is_last or steps[index] % every == 0:
            frames[index].append(env.render(*size))
        steps[index] += 1

    results = play_episodes(act, task, seeds, settings=settings, most_together=1, watch=watch)
    return tuple(
        Recording(seed=seed, success=bool(success), length=int(length), frames=tuple(kept))
        for seed, success, length, kept in zip(
            seeds, results.successes, results.lengths, frames, strict=True
        )
    )


def film_frames(recordings: Sequence[Recording], *, held: int = 12) -> list[Image]:
    """Return the frames of all episodes in turn, each with its number.

    The last frame of an episode is shown for `held` frames, framed and with its outcome, so that
    a reset is not taken for a move of the arm.
    """
    frames = list[Image]()
    for number, recording in enumerate(recordings, start=1):
        name = f"{number}/{len(recordings)}"
        frames += [_captioned(frame, name) for frame in recording.frames]
        colour = _GREEN if recording.success else _RED
        last = _captioned(recording.frames[-1], f"{name}  {recording.outcome}", colour=colour)
        frames += [last] * held
    return frames


def save_film(path: Path, frames: Sequence[Image], *, frames_per_s: int = 15) -> None:
    """Write frames as a GIF or an MP4, by the ending of the name."""
    if not frames:
        raise UserError(f"{path}: there are no frames to write")
    match path.suffix.lower():
        case ".gif":
            content = _gif(frames, frames_per_s)
        case ".mp4":
            content = _mp4(path, frames, frames_per_s)
        case _:
            raise UserError(f"{path}: films are .gif or .mp4 files: choose an ending")
    _write(path, content)


def save_contact_sheet(
    path: Path, recordings: Sequence[Recording], *, title: str = "", columns: int = 5
) -> None:
    """Write the last frame of each recording on one PNG, with its outcome, steps and seed."""
    if not recordings:
        raise UserError(f"{path}: there are no episodes to show")
    height, width, _ = recordings[0].frames[-1].shape
    columns = min(columns, len(recordings))
    rows = -(-len(recordings) // columns)
    cell = (width + 2 * _MARGIN, height + 2 * _MARGIN + _LABEL)
    top = _LABEL if title else 0
    sheet = Pictures.new("RGB", (columns * cell[0], rows * cell[1] + top), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((_MARGIN, 3), title, fill="black")
    for index, recording in enumerate(recordings):
        left, upper = index % columns * cell[0], index // columns * cell[1] + top
        colour = _GREEN if recording.success else _RED
        draw.rectangle((left, upper, left + cell[0] - 1, upper + cell[1] - _LABEL - 1), fill=colour)
        picture = Pictures.fromarray(recording.frames[-1])
        sheet.paste(picture, (left + _MARGIN, upper + _MARGIN))
        label = f"{recording.outcome}, seed {recording.seed}"
        draw.text((left + _MARGIN, upper + cell[1] - _LABEL + 2), label, fill=colour)
    content = io.BytesIO()
    sheet.save(content, format="PNG")
    _write(path, content.getvalue())


def _captioned(frame: Image, text: str, *, colour: tuple[int, int, int] | None = None) -> Image:
    """Return a copy with a text in the lower left corner, and a border of a colour."""
    picture = Pictures.fromarray(frame)
    draw = ImageDraw.Draw(picture)
    if colour is not None:
        draw.rectangle((0, 0, picture.width - 1, picture.height - 1), outline=colour, width=_MARGIN)
    place = (2 * _MARGIN, picture.height - _LABEL)
    left, top, right, bottom = draw.textbbox(place, text)
    draw.rectangle((left - 3, top - 2, right + 3, bottom + 2), fill=colour or (0, 0, 0))
    draw.text(place, text, fill="white")
    return np.array(picture, dtype=np.uint8)


def _palette(pictures: Sequence[Pictures.Image]) -> Pictures.Image:
    """Return one palette for all frames: colours chosen frame by frame would flicker.

    It is chosen from frames over the whole film: the outcomes have colours of their own.
    """
    chosen = [pictures[round(i)] for i in np.linspace(0, len(pictures) - 1, _PALETTE_FRAMES)]
    width, height = chosen[0].size
    strip = Pictures.new("RGB", (width, height * len(chosen)))
    for index, picture in enumerate(chosen):
        strip.paste(picture, (0, index * height))
    return strip.quantize(colors=256)


def _gif(frames: Sequence[Image], frames_per_s: int) -> bytes:
    pictures = [Pictures.fromarray(frame) for frame in frames]
    palette = _palette(pictures)
    # Dithered, a still background would change from frame to frame and fill the file.
    undithered = Pictures.Dither.NONE
    first, *rest = (picture.quantize(palette=palette, dither=undithered) for picture in pictures)
    content = io.BytesIO()
    first.save(
        content,
        format="GIF",
        save_all=True,
        append_images=rest,
        duration=round(1000 / frames_per_s),
        loop=0,
    )
    return content.getvalue()


def _mp4(path: Path, frames: Sequence[Image], frames_per_s: int) -> bytes:
    ffmpeg = shutil.which("ffmpeg")
    if ffmpeg is None:
        raise UserError(f"{path}: MP4 needs ffmpeg (apt-get install ffmpeg), or write a .gif")
    height, width, _ = frames[0].shape
    raw = [
        "-f",
        "rawvideo",
        "-pix_fmt",
        "rgb24",
        "-s",
        f"{width}x{height}",
        "-r",
        str(frames_per_s),
    ]
    # Players want yuv420p, which wants even sides.
    coded = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2", "-pix_fmt", "yuv420p"]
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "film.mp4"
        done = subprocess.run(
            [ffmpeg, "-loglevel", "error", *raw, "-i", "-", *coded, str(target)],
            input=np.stack(frames).tobytes(),
            capture_output=True,
            check=False,
        )
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip()
            raise UserError(f"{path}: ffmpeg failed: {reason}; write a .gif instead")
        return target.read_bytes()


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error}") from error
