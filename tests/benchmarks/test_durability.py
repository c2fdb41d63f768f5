"""The disk that forgets, of which `bench durability` makes its directories."""

from benchmarks.durability_parts.disk import Disk, is_directory, read_operations
from benchmarks.durability_parts.recording import Call, read_calls

ROOT = "/r"


def call(name: str, *, at: int, paths=(), texts=(), rest="", result=0) -> Call:
    return Call(
        name=name,
        paths=tuple(paths),
        texts=tuple(texts),
        rest=rest,
        result=result,
        begun=at,
        ended=at,
    )


def saved(*, synced: bool, parent_synced: bool) -> Disk:
    """A file that is written beside its place and renamed."""
    draft, target = b"/r/draft", b"/r/file"
    calls = [
        call("openat", at=0, paths=["/"], texts=[draft], rest="O_WRONLY|O_CREAT"),
        call("write", at=1, paths=["/r/draft"], texts=[b"content"], rest="7", result=7),
        *([call("fsync", at=2, paths=["/r/draft"])] if synced else []),
        call("rename", at=3, texts=[draft, target]),
        *([call("fsync", at=4, paths=["/r"])] if parent_synced else []),
    ]
    return Disk(read_operations(calls, root=ROOT, marks="/r/marks"))


def found(disk: Disk, cut: int) -> list[dict[str, bytes]]:
    trees = disk.states(cut, seeds=("a", "b"))
    return [
        {path: each.data for path, each in tree.items() if not is_directory(each)} for tree in trees
    ]


def test_what_is_synced_with_its_name_is_there_in_every_state():
    assert all(
        tree == {"file": b"content"} for tree in found(saved(synced=True, parent_synced=True), 5)
    )


def test_a_name_that_is_not_synced_may_be_missing():
    trees = found(saved(synced=True, parent_synced=False), 4)
    assert {} in trees
    assert {"file": b"content"} in trees


def test_bytes_that_are_not_synced_may_be_missing_zeros_or_torn_under_a_name_that_is_there():
    trees = found(saved(synced=False, parent_synced=True), 4)
    for content in (b"", bytes(7), b"con", b"content"):
        assert {"file": content} in trees


def test_a_recording_is_read_with_calls_that_others_interrupt(tmp_path):
    def written(text: str) -> str:
        return "".join(f"\\x{ord(letter):02x}" for letter in text)

    trace = tmp_path / "trace"
    trace.write_text(
        f'7 write(3<{written("/r/a")}>, "{written("one")}", 3 <unfinished ...>\n'
        f"8 fsync(4<{written('/r/b')}>) = 0\n"
        "7 <... write resumed>) = 3\n"
        f'7 rename("{written("/r/a")}", "{written("/r/c")}") = -1 ENOENT (No such file)\n'
        f'7 write(3<{written("/elsewhere")}>, "{written("two")}", 3) = 3\n'
    )
    first, second = read_calls(trace, root="/r")
    assert (first.name, first.paths) == ("fsync", ("/r/b",))
    assert (second.name, second.texts, second.result) == ("write", (b"one",), 3)
    assert (second.begun, second.ended) == (0, 2)
