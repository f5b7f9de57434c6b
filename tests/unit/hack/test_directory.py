from __future__ import annotations

from pathlib import Path

import pytest

from hack.sandbox import directory as folder
from hack.sandbox.errors import SandboxError


def test_a_new_folder_is_made_and_claimed(tmp_path):
    """With its parents."""
    with folder.claimed(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize("action", [folder.empty, folder.remove])
def test_foreign_files_are_never_removed(tmp_path, action):
    """Emptying or removing a folder with such files is refused."""
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "photos").mkdir()
    with pytest.raises(SandboxError, match="not empty and not a sandbox's; choose another --directory"):
        action(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    assert (tmp_path / "photos").is_dir()


def test_claiming_refuses_foreign_files_first(tmp_path):
    """The body of a claim does not run."""
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(SandboxError, match="not a sandbox's"), folder.claimed(tmp_path):
        pytest.fail("the folder is not ours")


def test_two_commands_never_share_a_folder(tmp_path):
    """A second claim is refused while the first lasts, and works afterwards."""
    with (
        folder.claimed(tmp_path),
        pytest.raises(SandboxError, match="another command uses"),
        folder.claimed(tmp_path),
    ):
        pytest.fail("two at once")
    with folder.claimed(tmp_path):
        pass


def test_a_sandbox_folder_is_emptied_and_kept(tmp_path):
    """Links are deleted without their targets."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    ours = tmp_path / "ours"
    (ours / "etcd" / "member").mkdir(parents=True)
    (ours / folder.STATE).write_text("{}")
    (ours / "link").symlink_to(outside, target_is_directory=True)
    folder.empty(ours)
    assert list(ours.iterdir()) == []
    assert (outside / "kept").exists()


def test_removing_twice_is_no_error(tmp_path):
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / folder.STATE).write_text("{}")
    folder.remove(ours)
    folder.remove(ours)
    assert not ours.exists()


def test_nothing_is_removed_under_a_mount(tmp_path, monkeypatch):
    (tmp_path / folder.STATE).write_text("{}")
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "somebody's").touch()
    monkeypatch.setattr(folder, "mounts_in", lambda _directory: [tmp_path / "volume"])
    with pytest.raises(SandboxError, match="volume is still mounted"):
        folder.empty(tmp_path)
    assert (tmp_path / "volume" / "somebody's").exists()


def test_mounts_are_returned_deepest_first(tmp_path):
    """Only mount points in the folder, with octal blanks decoded."""
    table = (
        "tmpfs /sandbox/node/a tmpfs rw 0 0\n"
        "tmpfs /sandbox/node/a/b\\040c tmpfs rw 0 0\n"
        "tmpfs /sandbox tmpfs rw 0 0\n"
        "tmpfs /sandboxes/other tmpfs rw 0 0\n"
    )
    found = folder.mounts_in(Path("/sandbox"), table=table)
    assert found == [Path("/sandbox/node/a/b c"), Path("/sandbox/node/a")]


def test_a_file_in_place_of_the_folder_is_one_line(tmp_path):
    """The error names the path and its option."""
    (tmp_path / "file").touch()
    with (
        pytest.raises(SandboxError, match="file: File exists"),
        folder.claimed(tmp_path / "file"),
    ):
        pytest.fail("a file is no folder")
