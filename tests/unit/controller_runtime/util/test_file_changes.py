from __future__ import annotations

import os
from pathlib import Path

from controller_runtime.util.file_changes import FileChanges


def _write(path: Path, text: str, *, at: float) -> dict[str, str]:
    path.write_text(text, encoding="utf-8")
    os.utime(path, (at, at))
    return {"file": str(path)}


def test_a_change_is_reported_once(tmp_path: Path):
    """Not every two seconds."""
    files = _write(tmp_path / "config.yaml", "a", at=1)
    changes = FileChanges(files)
    assert changes.changed(files) == []
    _write(tmp_path / "config.yaml", "b", at=2)
    assert changes.changed(files) == ["file"]
    assert changes.changed(files) == []


def test_a_change_before_the_first_check_is_reported(tmp_path: Path):
    """A standby replica that leads days later starts with the current file."""
    files = _write(tmp_path / "config.yaml", "read at start", at=1)
    changes = FileChanges(files)
    _write(tmp_path / "config.yaml", "changed while another led", at=2)
    assert changes.changed(files) == ["file"]


def test_no_file_never_changes():
    """An empty path means no file."""
    assert FileChanges({"config": ""}).changed({"config": ""}) == []


def test_a_missing_file_has_not_changed(tmp_path: Path):
    """During the update of a volume; the new file is noticed when it exists."""
    files = _write(tmp_path / "kubeconfig", "old", at=1)
    changes = FileChanges(files)
    (tmp_path / "kubeconfig").unlink()
    assert changes.changed(files) == []
    _write(tmp_path / "kubeconfig", "new", at=2)
    assert changes.changed(files) == ["file"]


def test_a_newly_followed_file_has_not_changed(tmp_path: Path):
    """A cluster that was just added already uses its kubeconfig."""
    files = _write(tmp_path / "kubeconfig", "a", at=1)
    changes = FileChanges({})
    assert changes.changed(files) == []
    _write(tmp_path / "kubeconfig", "b", at=2)
    assert changes.changed(files) == ["file"]


def test_another_path_under_a_known_name_has_not_changed(tmp_path: Path):
    """A configuration that names another kubeconfig has already restarted its cluster."""
    changes = FileChanges(_write(tmp_path / "old", "a", at=1))
    fresh = _write(tmp_path / "new", "b", at=2)
    assert changes.changed(fresh) == []
    _write(tmp_path / "new", "c", at=3)
    assert changes.changed(fresh) == ["file"]


def test_volumes_swap_links(tmp_path: Path):
    """A mounted Secret is a link to a folder that is replaced."""
    for number in (1, 2):
        (tmp_path / f"..{number}").mkdir()
        _write(tmp_path / f"..{number}" / "kubeconfig", str(number), at=1)
    link = tmp_path / "..data"
    link.symlink_to("..1")
    files = {"file": str(tmp_path / "..data/kubeconfig")}
    changes = FileChanges(files)
    fresh = tmp_path / "..tmp"
    fresh.symlink_to("..2")
    fresh.rename(link)
    assert changes.changed(files) == ["file"]


def test_a_file_rewritten_with_equal_content_has_not_changed(tmp_path: Path):
    """One Secret may contain the kubeconfigs of all clusters, and only one is rotated."""
    files = _write(tmp_path / "kubeconfig", "same", at=1)
    changes = FileChanges(files)
    (tmp_path / "kubeconfig").unlink()
    _write(tmp_path / "kubeconfig", "same", at=2)
    assert changes.changed(files) == []
    _write(tmp_path / "kubeconfig", "else", at=3)
    assert changes.changed(files) == ["file"]
