"""A disk that forgets: what a power cut at any point of a recording could have left.

The pessimistic model of POSIX: bytes of a file are safe when the file was synced after they were
written; a name (created, renamed, removed) is safe when its directory was synced after that. All
else may be there or not: bytes may be missing, zeros or torn, names may be old or new, each
independently. Only a rename within a file system is one change, as journals make it.
"""

import hashlib
import random
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal

from benchmarks.durability_parts.recording import Call

Kind = Literal["name", "data", "size", "sync", "mark"]
Fate = Literal["safe", "all", "zeros", "torn"]
"""What became of bytes that were not synced: lost, there, zeros of the right length, half."""
FATES: tuple[Fate, ...] = ("safe", "all", "zeros", "torn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One change of the disk.

    Example:
        Operation(kind="name", node=7, directory=0, name="events.jsonl", begun=3, ended=3)

    """

    kind: Kind
    node: int = -1
    """The file or directory that is changed, synced or named."""
    directory: int = -1
    name: str = ""
    """A name that a `name` operation gives to `node`, in `directory`; "": it only loses one."""
    old_directory: int = -1
    old_name: str = ""
    """The name that is taken away, if any."""
    is_directory: bool = False
    offset: int = 0
    data: bytes = b""
    text: str = ""
    """What a mark says."""
    begun: int
    ended: int


ROOT = 0


@dataclass(slots=True)
class Recorder:
    """Turns system calls into operations, by keeping the tree as the program saw it."""

    root: str
    marks: str
    operations: list[Operation] = field(default_factory=list[Operation])
    _names: dict[str, int] = field(default_factory=dict[str, int])
    """Nodes by path."""
    _cursors: dict[str, int] = field(default_factory=dict[str, int])
    _appends: set[str] = field(default_factory=set[str])
    _sizes: dict[int, int] = field(default_factory=dict[int, int])
    _nodes: Iterator[int] = field(default_factory=lambda: count(ROOT + 1))

    def __post_init__(self) -> None:
        self._names[self.root] = ROOT

    def take(self, call: Call) -> None:
        """Add what a call changed."""
        match call.name:
            case "open" | "openat" | "creat":
                self._open(call)
            case "write" | "pwrite64" | "writev" | "pwritev" | "pwritev2":
                self._write(call, b"".join(call.texts)[: call.result])
            case "sendfile" | "copy_file_range":
                self._copy(call)
            case "lseek":
                self._cursors[call.paths[0]] = call.result
            case "ftruncate" | "truncate":
                path = call.paths[0] if call.name == "ftruncate" else self._path(call, 0)
                self._resize(call, path, int(call.rest.split()[-1]))
            case "fallocate":
                offset, length = map(int, call.rest.split()[-2:])
                self._resize(call, call.paths[0], offset + length)
            case "mkdir" | "mkdirat":
                self._create(call, self._path(call, 0), is_directory=True)
            case "rename" | "renameat" | "renameat2":
                self._rename(call, self._path(call, 0), self._path(call, 1))
            case "unlink" | "unlinkat" | "rmdir":
                self._remove(call, self._path(call, 0))
            case "fsync" | "fdatasync":
                if call.paths[0] in self._names:
                    self._add(call, "sync", node=self._names[call.paths[0]])
            case "sync" | "syncfs":
                raise AssertionError(f"{call.name} would sync everything: sync what is written")
            case _:
                raise AssertionError(f"{call.name} on {call.paths} is not part of the model")

    def _path(self, call: Call, which: int) -> str:
        name = call.texts[which].decode()
        if name.startswith("/"):
            return name
        return f"{call.paths[which]}/{name}"

    def _open(self, call: Call) -> None:
        path = self._path(call, 0)
        if not path.startswith(self.root + "/"):
            return
        if "O_CREAT" in call.rest and path not in self._names:
            self._create(call, path)
        if path in self._names:
            self._cursors[path] = 0
            (self._appends.add if "O_APPEND" in call.rest else self._appends.discard)(path)
            if "O_TRUNC" in call.rest:
                self._resize(call, path, 0)

    def _write(self, call: Call, data: bytes) -> None:
        path = call.paths[0]
        if path == self.marks:
            for line in data.decode().splitlines():
                self._add(call, "mark", text=line)
        node = self._names.get(path)
        if node is None or path == self.marks:
            return
        if call.name.startswith("p"):
            offset = int(call.rest.split()[-1])
        else:
            offset = self._sizes[node] if path in self._appends else self._cursors[path]
            self._cursors[path] = offset + len(data)
        assert len(data) == call.result, f"the recording holds only part of a write to {path}"
        self._add(call, "data", node=node, offset=offset, data=data)
        self._sizes[node] = max(self._sizes[node], offset + len(data))

    def _copy(self, call: Call) -> None:
        """Take what the kernel copied; its source is a file that does not change."""
        target, source = call.paths if call.name == "sendfile" else call.paths[::-1]
        node = self._names.get(target)
        if node is not None and call.result:
            offset = self._cursors[target]
            data = Path(source).read_bytes()[offset : offset + call.result]
            self._add(call, "data", node=node, offset=offset, data=data)
            self._cursors[target] = self._sizes[node] = offset + call.result

    def _resize(self, call: Call, path: str, size: int) -> None:
        node = self._names.get(path)
        if node is not None and self._sizes[node] != size:
            self._add(call, "size", node=node, offset=size)
            self._sizes[node] = size

    def _create(self, call: Call, path: str, *, is_directory: bool = False) -> None:
        if not path.startswith(self.root + "/"):
            return
        node = self._names[path] = next(self._nodes)
        self._sizes[node] = 0
        parent, name = path.rsplit("/", 1)
        self._add(
            call,
            "name",
            node=node,
            directory=self._names[parent],
            name=name,
            is_directory=is_directory,
        )

    def _rename(self, call: Call, old: str, new: str) -> None:
        if old not in self._names:
            return
        (old_parent, old_name), (parent, name) = old.rsplit("/", 1), new.rsplit("/", 1)
        self._add(
            call,
            "name",
            node=self._names[old],
            directory=self._names[parent],
            name=name,
            old_directory=self._names[old_parent],
            old_name=old_name,
        )
        for path in [each for each in self._names if each == new or each.startswith(f"{new}/")]:
            del self._names[path]
        moved = [each for each in self._names if each == old or each.startswith(f"{old}/")]
        for path in moved:
            self._names[new + path.removeprefix(old)] = self._names.pop(path)

    def _remove(self, call: Call, path: str) -> None:
        node = self._names.pop(path, None)
        if node is not None:
            parent, name = path.rsplit("/", 1)
            directory = self._names[parent]
            self._add(call, "name", node=node, old_directory=directory, old_name=name)

    def _add(self, call: Call, kind: Kind, **values: object) -> None:
        made = Operation(kind=kind, begun=call.begun, ended=call.ended, **values)  # type: ignore[arg-type]
        self.operations.append(made)


def read_operations(calls: Iterable[Call], *, root: str, marks: str) -> list[Operation]:
    """Return what the calls changed below `root`, in order."""
    recorder = Recorder(root=root, marks=marks)
    for call in calls:
        recorder.take(call)
    return recorder.operations


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The bytes of a file: so many of its changes, then perhaps a tail that was not synced.

    Two are equal if they hold the same bytes, and only then made into a file twice.
    """

    digest: bytes
    data: bytes = field(compare=False, repr=False)


Tree = Mapping[str, Content]
"""Files by their path below the root."""


class Disk:
    """The states a recording can be found in after a power cut."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations
        self._contents: dict[tuple[int, int, int, Fate], Content] = {}
        self._changes: dict[int, list[int]] = {}
        self._syncs: dict[int, list[tuple[int, int]]] = {}
        """By node, for each sync: its index, and when it or a later one before it began."""
        self._directories = {each.node for each in operations if each.is_directory}
        for index, each in enumerate(operations):
            if each.kind in ("data", "size"):
                self._changes.setdefault(each.node, []).append(index)
            elif each.kind == "sync":
                syncs = self._syncs.setdefault(each.node, [])
                syncs.append((index, max(each.begun, syncs[-1][1] if syncs else -1)))

    def states(self, cut: int, *, seeds: Iterable[str] = ()) -> Iterator[Tree]:
        """Yield what may be there if the power fails before operation `cut`.

        Nothing but what is safe; everything; names and bytes each without the other; bytes as
        zeros and torn; and for each seed names and bytes drawn at random.
        """
        pending = [
            index
            for index, each in enumerate(self._operations[:cut])
            if each.kind == "name" and not self._is_name_safe(index, cut)
        ]
        nothing = frozenset(pending)
        yield self._tree(cut, nothing, lambda _: "safe")
        yield self._tree(cut, nothing, lambda _: "all")
        for fate in FATES:
            yield self._tree(cut, frozenset(), partial(_always, fate))
        for seed in seeds:
            drawn = random.Random(f"{seed}-{cut}")
            if drawn.random() < 0.5:  # in order, as journals keep names
                lost = pending[drawn.randint(0, len(pending)) :]
            else:
                lost = [index for index in pending if drawn.random() < 0.5]
            fates: dict[int, Fate] = {node: drawn.choice(FATES) for node in self._changes}
            yield self._tree(cut, frozenset(lost), partial(_drawn, fates))

    def everything(self, cut: int) -> Tree:
        """Return what the program itself sees before operation `cut`."""
        return self._tree(cut, frozenset(), lambda _: "all")

    def _is_name_safe(self, index: int, cut: int) -> bool:
        each = self._operations[index]
        directories = {each.directory, each.old_directory} - {-1}
        return all(self._synced(node, cut) > each.ended for node in directories)

    def _synced(self, node: int, cut: int) -> int:
        """Return when the last sync of a node began that ended before the cut; -1: never."""
        syncs = self._syncs.get(node, [])
        before = bisect_left(syncs, (cut, -1))
        return syncs[before - 1][1] if before else -1

    def _tree(self, cut: int, lost: frozenset[int], fate_of: Callable[[int], Fate]) -> Tree:
        names: dict[int, dict[str, int]] = {ROOT: {}}
        for index, each in enumerate(self._operations[:cut]):
            if each.kind == "name" and index not in lost:
                _apply(each, names)
        files: dict[str, Content] = {}
        self._walk(ROOT, "", names, files, lambda node: self._content(node, cut, fate_of(node)))
        return files

    def _walk(
        self,
        node: int,
        path: str,
        names: Mapping[int, Mapping[str, int]],
        files: dict[str, Content],
        content: Callable[[int], Content],
    ) -> None:
        for name, child in names.get(node, {}).items():
            if child in self._directories:
                files[f"{path}{name}/"] = _DIRECTORY
                self._walk(child, f"{path}{name}/", names, files, content)
            else:
                files[f"{path}{name}"] = content(child)

    def _content(self, node: int, cut: int, fate: Fate) -> Content:
        changes = [at for at in self._changes.get(node, ()) if at < cut]
        synced = self._synced(node, cut)
        safe = sum(self._operations[at].ended < synced for at in changes)
        fate = "all" if safe == len(changes) else fate
        key = (node, safe, len(changes), fate)
        if key not in self._contents:
            self._contents[key] = self._make_content(changes, safe, fate)
        return self._contents[key]

    def _make_content(self, changes: Sequence[int], safe: int, fate: Fate) -> Content:
        data = bytearray()
        kept = changes if fate in ("all", "torn") else changes[:safe]
        for number, at in enumerate(kept):
            each = self._operations[at]
            if each.kind == "size":
                del data[each.offset :]
                data.extend(bytes(each.offset - len(data)))
                continue
            written = each.data
            if fate == "torn" and number == len(kept) - 1:
                written = written[: len(written) // 2]
            data.extend(bytes(max(0, each.offset - len(data))))
            data[each.offset : each.offset + len(written)] = written
        if fate == "zeros":
            length = 0
            for at in changes:
                each = self._operations[at]
                end = each.offset + len(each.data)
                length = end if each.kind == "size" else max(length, end)
            data.extend(bytes(max(0, length - len(data))))
        return Content(digest=hashlib.sha256(data).digest(), data=bytes(data))


def _drawn(fates: Mapping[int, Fate], node: int) -> Fate:
    return fates.get(node, "all")


def _always(fate: Fate, _node: int) -> Fate:
    return fate


_DIRECTORY = Content(digest=b"a directory", data=b"")


def _apply(each: Operation, names: dict[int, dict[str, int]]) -> None:
    """Change names as far as that can be: what it would rename may never have been there."""
    if each.old_name:
        there = names.get(each.old_directory, {})
        if there.get(each.old_name) != each.node:
            return
        if not each.name:
            del there[each.old_name]
            return
        if names.get(names.get(each.directory, {}).get(each.name, -1)):
            return  # a directory that is not empty is not replaced
        del there[each.old_name]
    names.setdefault(each.directory, {})[each.name] = each.node
    names.setdefault(each.node, {})


def is_directory(content: Content) -> bool:
    """Say whether an entry of a tree is a directory."""
    return content is _DIRECTORY
