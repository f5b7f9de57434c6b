from __future__ import annotations

from pathlib import Path

import pytest

from hack.sandbox import directory as folder
from hack.sandbox.errors import SandboxError


def test_a_new_folder_is_made_and_ours(tmp_path):
    """Claiming a folder that is not there makes it, parents and all."""
    with folder.claimed(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize("action", [folder.empty, folder.remove])
def test_what_is_not_ours_is_never_removed(tmp_path, action):
    """Emptying or removing a folder with foreign files refuses, and every file is still there."""
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "photos").mkdir()
    with pytest.raises(SandboxError, match="not empty and not a sandbox's; choose another --directory"):
        action(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    assert (tmp_path / "photos").is_dir()


def test_claiming_refuses_foreign_files_before_anything_happens(tmp_path):
    """The body of a claim never runs in a folder that is not ours."""
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


def test_our_folder_is_emptied_and_kept(tmp_path):
    """A folder with our state file loses all it holds, links without what they point to."""
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


def test_removing_twice_is_fine(tmp_path):
    """Our folder goes with its contents; one that is gone is no error."""
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / folder.STATE).write_text("{}")
    folder.remove(ours)
    folder.remove(ours)
    assert not ours.exists()


def test_nothing_is_removed_under_a_mount(tmp_path, monkeypatch):
    """With something mounted inside, files behind the mount are never reached."""
    (tmp_path / folder.STATE).write_text("{}")
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "somebody's").touch()
    monkeypatch.setattr(folder, "mounts_in", lambda _directory: [tmp_path / "volume"])
    with pytest.raises(SandboxError, match="volume is still mounted"):
        folder.empty(tmp_path)
    assert (tmp_path / "volume" / "somebody's").exists()


def test_mounts_come_deepest_first_with_their_real_names(tmp_path):
    """Mount points below the folder, not beside it, octal blanks read, the order in which to unmount."""
    table = (
        "tmpfs /sandbox/node/a tmpfs rw 0 0\n"
        "tmpfs /sandbox/node/a/b\\040c tmpfs rw 0 0\n"
        "tmpfs /sandbox tmpfs rw 0 0\n"
        "tmpfs /sandboxes/other tmpfs rw 0 0\n"
    )
    found = folder.mounts_in(Path("/sandbox"), table=table)
    assert found == [Path("/sandbox/node/a/b c"), Path("/sandbox/node/a")]


def test_a_file_in_the_way_is_one_line(tmp_path):
    """A path that is a file is named together with the option it came from."""
    (tmp_path / "file").touch()
    with (
        pytest.raises(SandboxError, match="file: File exists"),
        folder.claimed(tmp_path / "file"),
    ):
        pytest.fail("a file is no folder")
