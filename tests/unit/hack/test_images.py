from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

from hack.sandbox.builds.images import PAUSE, busybox_image, pause_image, write_archive


def read(path: Path) -> tuple[Any, Any, dict[str, tarfile.TarInfo], str]:
    """Return manifest, config, the layer's members by name, and the layer's digest of a docker archive."""
    with tarfile.open(path) as archive:
        contents = {name: _content(archive, name) for name in archive.getnames()}
    (manifest,) = json.loads(contents["manifest.json"])
    layer = contents[manifest["Layers"][0]]
    (path.parent / "layer.tar").write_bytes(layer)
    with tarfile.open(path.parent / "layer.tar") as unpacked:
        members = {member.name: member for member in unpacked.getmembers()}
    return manifest, json.loads(contents[manifest["Config"]]), members, hashlib.sha256(layer).hexdigest()


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def test_the_same_image_is_the_same_bytes(tmp_path):
    """Independent of times, owners and order of files."""
    (tmp_path / "busybox").write_bytes(b"binary")
    image = busybox_image(tmp_path / "busybox", ["sh", "cat"])
    write_archive(image, tmp_path / "one.tar")
    (tmp_path / "busybox").touch()
    write_archive(image, tmp_path / "two.tar")
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()


def test_busybox_has_a_link_for_every_applet(tmp_path):
    """The binary is executable, applets point to it, and the layer is the one that the config names."""
    (tmp_path / "busybox").write_bytes(b"binary")
    write_archive(busybox_image(tmp_path / "busybox", ["busybox", "sh", "cat"]), tmp_path / "image.tar")
    manifest, config, members, digest = read(tmp_path / "image.tar")
    assert manifest["RepoTags"] == ["docker.io/library/busybox:latest", "docker.io/library/busybox:1.36"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{digest}"]
    assert config["config"]["Cmd"] == ["sh"]
    assert members["bin/busybox"].isreg()
    assert members["bin/busybox"].mode == 0o755
    assert {name: member.linkname for name, member in members.items() if member.issym()} == {
        "bin/sh": "busybox",
        "bin/cat": "busybox",
    }


def test_pause_is_the_entry_point(tmp_path):
    """The image has the name of containerd's configuration."""
    (tmp_path / "pause").write_bytes(b"binary")
    write_archive(pause_image(tmp_path / "pause"), tmp_path / "image.tar")
    manifest, config, members, _ = read(tmp_path / "image.tar")
    assert manifest["RepoTags"] == [PAUSE]
    assert config["config"]["Entrypoint"] == ["/pause"]
    assert members["pause"].size == len(b"binary")
