"""Tensor files: safetensors, one per rank, in directories that appear whole or not at all.

    model.safetensors                                        one rank
    model-00001-of-00002.safetensors … + model.safetensors.index.json    two

This is Hugging Face's own layout. A tensor lies whole in one file, so files written by any number
of ranks are read by any other: a reader takes the rows it holds of each tensor. Which rank writes
which tensor follows from their sizes alone. A directory is written as a draft beside its place and
renamed at the end (`drafted`), when every rank has its file on the disk; if one rank fails, all
raise the same message.
"""

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rollart.atomic_files import FULL, make_directory, recover_directory, replace_directory, sync
from rollart.errors import DamagedError, ModelError, StorageError
from rollart.models.files import indexed_files
from rollart.training.batch import deal
from rollart.training.distributed.process_group import ProcessGroup, told_to_all
from rollart.training.distributed.sharding import Rows

_FULL = {*FULL, errno.EFBIG}


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A directory being written.

    Example:
        >>> with drafted(Path("checkpoints/7"), world=world, what="checkpoint") as draft:
        ...     draft.first(lambda: (draft.path / "trainer.json").write_text("{}"))

    """

    path: Path
    """Where to write."""
    target: Path
    """What it will be called."""
    world: ProcessGroup
    what: str
    """What it is, for messages."""

    def each(self, work: Callable[[], object]) -> None:
        """Do this rank's part; raise on all ranks if it fails on any."""
        with told_to_all(self.world, StorageError):
            try:
                work()
            except (OSError, SafetensorError) as error:
                raise StorageError(_complaint(error, self.target, self.what)) from error

    def first(self, work: Callable[[], object]) -> None:
        """Do what one rank does for all; raise on all ranks if it fails."""
        self.each(work if self.world.is_first else lambda: None)


@contextmanager
def drafted(directory: Path, *, world: ProcessGroup, what: str) -> Generator[Draft]:
    """Write a directory as a whole, replacing the one of that name only at the end."""
    directory = directory.absolute()
    parent, fresh = directory.parent, directory.with_name(f".{directory.name}.new")
    draft = Draft(path=fresh, target=directory, world=world, what=what)

    def begin() -> None:
        make_directory(parent)
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()

    try:
        draft.first(begin)
        yield draft
        draft.first(lambda: replace_directory(fresh, directory))
    except BaseException:
        if world.is_first:
            shutil.rmtree(fresh, ignore_errors=True)
        raise


def recover(directory: Path, *, world: ProcessGroup) -> None:
    """Give a directory its name back if a crash between two renames took it."""
    if world.is_first:
        recover_directory(directory.absolute())
    world.first_words("")  # no rank reads before the first one has recovered it


def _complaint(error: OSError | SafetensorError, directory: Path, what: str) -> str:
    """Return one message that names the directory and what is free."""
    number = error.errno if isinstance(error, OSError) else _os_error(error)
    exists = os.path.exists  # Path.exists raises where a parent may not be entered
    place = next(path for path in directory.absolute().parents if exists(path))
    free = shutil.disk_usage(place).free
    why = "the disk is full" if number in _FULL else str(error)
    previous = f"; the previous {what} is untouched" if exists(directory) else ""
    return (
        f"cannot write the {what} {directory}: {why} ({free:,} bytes free in {place}); "
        f"make room or choose another directory{previous}"
    )


def _os_error(error: SafetensorError) -> int | None:
    """Return the system's error number that safetensors keeps only in its message."""
    found = re.search(r"os error (\d+)", str(error))
    return int(found.group(1)) if found else None


class Division:
    """Which rank writes which of the tensors that are to be stored."""

    def __init__(self, sizes: Mapping[str, int], *, ranks: int) -> None:
        self._names = list(sizes)
        parts = deal(dict(enumerate(sizes.values())), ranks=ranks, attention=0.0)
        self._owners = {
            self._names[index]: rank for rank, part in enumerate(parts) for index in part
        }
        self._ranks = ranks

    def take(self, tensors: Iterable[tuple[str, Tensor]], *, rank: int) -> dict[str, Tensor]:
        """Go through all tensors and keep those this rank writes."""
        return {
            name: tensor.cpu().contiguous()
            for name, tensor in tensors
            if self._owners.get(name) == rank
        }

    def write(self, tensors: Mapping[str, Tensor], directory: Path, stem: str, rank: int) -> None:
        """Write this rank's file; it is on the disk when this returns.

        The first rank, which renames the directory, cannot sync what another machine still has in
        its memory.
        """
        path = directory / self._file(stem, rank)
        save_file(dict(tensors), path, metadata={"format": "pt"})
        sync(path)

    def write_index(self, directory: Path, stem: str, *, total_bytes: int) -> None:
        """Say which file holds which tensor, if there are several."""
        if self._ranks > 1:
            files = {name: self._file(stem, self._owners[name]) for name in self._names}
            index = {"metadata": {"total_size": total_bytes}, "weight_map": files}
            (directory / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=1))

    def _file(self, stem: str, rank: int) -> str:
        if self._ranks == 1:
            return f"{stem}.safetensors"
        return f"{stem}-{rank + 1:05d}-of-{self._ranks:05d}.safetensors"


class TensorReader:
    """The tensors stored under a stem, in one file or several; what is amiss is a ModelError."""

    def __init__(self, directory: Path, stem: str) -> None:
        self._path = directory / f"{stem}.safetensors"
        self._directory = directory
        self._stem = stem
        self._files: dict[str, Any] = {}
        self._places: dict[str, str] = {}

    def __enter__(self) -> "TensorReader":
        index = self._directory / f"{self._stem}.safetensors.index.json"
        try:
            names = [self._path.name]
            if index.is_file():
                names = indexed_files(json.loads(index.read_text()))
            for name in names:
                opened: Any = safe_open(self._directory / name, framework="pt")
                self._files[name] = opened.__enter__()
                self._places |= dict.fromkeys(opened.keys(), name)
        except (OSError, SafetensorError, ValueError, AttributeError, RecursionError) as error:
            raise self._damaged(error) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for opened in self._files.values():
            opened.__exit__(kind, error, trace)

    @property
    def names(self) -> list[str]:
        """The names of all tensors."""
        return list(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's dimensions."""
        return tuple(self._files[self._places[name]].get_slice(name).get_shape())

    def read(self, name: str, rows: Rows, *, shape: tuple[int, ...]) -> Tensor:
        """Return rows of a tensor that must be of this shape."""
        if name not in self._places:
            raise DamagedError(f"{self._path} holds no {name}; resume from another")
        if self.shape(name) != shape:
            raise ModelError(f"{self._path} holds {name} {self.shape(name)}; wanted {shape}")
        try:
            opened = self._files[self._places[name]]
            if not shape or rows.end is None:
                return opened.get_tensor(name)
            return opened.get_slice(name)[rows.start : rows.end]
        except (OSError, SafetensorError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> ModelError:
        return DamagedError(f"{self._path} is missing or damaged ({error}); resume from another")
