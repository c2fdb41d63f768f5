from pathlib import Path

import pytest

from rollart.atomic_files import cut_short, recover_directory, replace_directory


def written(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "file").write_text(text)
    return path


def test_a_draft_takes_the_place_of_what_was_there(tmp_path):
    target = written(tmp_path / "entry", "old")
    replace_directory(written(tmp_path / "draft", "new"), target)
    assert (target / "file").read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_a_draft_that_cannot_be_renamed_leaves_what_was_there(tmp_path):
    target = written(tmp_path / "entry", "old")
    with pytest.raises(FileNotFoundError):
        replace_directory(tmp_path / "nothing", target)
    assert (target / "file").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_replacement_that_was_cut_short_is_undone(tmp_path):
    written(tmp_path / ".entry-1.old", "old")
    assert cut_short(tmp_path, "entry-") == [tmp_path / "entry-1"]
    recover_directory(tmp_path / "entry-1")
    assert (tmp_path / "entry-1" / "file").read_text() == "old"
    recover_directory(tmp_path / "entry-1")
    assert cut_short(tmp_path, "entry-") == []


def test_what_a_crash_left_beside_a_whole_directory_is_not_taken_for_it(tmp_path):
    written(tmp_path / ".entry.old", "older")
    target = written(tmp_path / "entry", "old")
    recover_directory(target)
    assert (target / "file").read_text() == "old"
    replace_directory(written(tmp_path / "draft", "new"), target)
    assert list(tmp_path.iterdir()) == [target]
