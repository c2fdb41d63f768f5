import pytest

from rollart.atomic_files import written_whole


def test_a_directory_appears_whole(tmp_path):
    target = tmp_path / "deep" / "entry"
    with written_whole(target) as draft:
        (draft / "a").write_text("1")
        assert not target.exists()
    assert (target / "a").read_text() == "1"
    assert list(target.parent.iterdir()) == [target]


def test_a_failure_leaves_nothing_and_keeps_what_was_there(tmp_path):
    target = tmp_path / "entry"
    with written_whole(target) as draft:
        (draft / "a").write_text("old")
    with pytest.raises(RuntimeError), written_whole(target) as draft:
        (draft / "a").write_text("half")
        raise RuntimeError
    assert (target / "a").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_an_older_entry_is_replaced(tmp_path):
    target = tmp_path / "entry"
    for text in ("old", "new"):
        with written_whole(target) as draft:
            (draft / text).write_text(text)
    assert [file.name for file in target.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [target]
