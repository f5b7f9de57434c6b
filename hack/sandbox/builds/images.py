"""Container images without a registry: docker archives, reproducible byte by byte."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

PAUSE = "registry.k8s.io/pause:3.10"
BUSYBOX = ("docker.io/library/busybox:latest", "docker.io/library/busybox:1.36")


@dataclass(frozen=True, slots=True)
class Image:
    """The content of an image."""

    tags: Sequence[str]
    files: Mapping[str, Path]
    """File in the image → file on this machine; all are executable."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """File in the image → its content."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Symbolic link → target."""
    modes: Mapping[str, int] = field(default_factory=dict)
    """Modes of files that differ from 0755 (programs) and 0644 (texts), and of further directories."""
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    user: str = ""
    working_directory: str = ""
    accounts: Mapping[str, int] = field(default_factory=dict)
    """Users besides root and nobody → uid; each has a group with the same number."""
    groups: Mapping[str, tuple[int, Sequence[str]]] = field(default_factory=dict)
    """Groups → number and members."""


def pause_image(binary: Path) -> Image:
    """Return the image of every pod's sandbox container."""
    return Image(tags=(PAUSE,), files={"pause": binary}, entrypoint=("/pause",))


def busybox_image(binary: Path, applets: Sequence[str]) -> Image:
    """Return busybox with a link for every applet."""
    return Image(
        tags=BUSYBOX,
        files={"bin/busybox": binary},
        links={f"bin/{applet}": "busybox" for applet in applets if applet != "busybox"},
        command=("sh",),
    )


def architecture() -> str:
    """Return this machine's architecture, as images and nodes name it."""
    machine = platform.machine()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def write_archive(image: Image, path: Path) -> None:
    """Write an image as the tar that ``docker save`` would write and ``ctr image import`` reads."""
    layer = _layer(image)
    digest = hashlib.sha256(layer).hexdigest()
    config: dict[str, Any] = {
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Entrypoint": list(image.entrypoint) or None,
            "Cmd": list(image.command) or None,
            "User": image.user,
            "WorkingDir": image.working_directory,
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "virtual-node sandbox"}],
    }
    config_bytes = json.dumps(config, sort_keys=True).encode()
    config_name = f"{hashlib.sha256(config_bytes).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": list(image.tags), "Layers": [f"{digest}/layer.tar"]}]
    with tarfile.open(path, "w") as archive:
        _add(archive, config_name, config_bytes)
        _add(archive, f"{digest}/layer.tar", layer)
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _layer(image: Image) -> bytes:
    buffer = io.BytesIO()
    directories = {"bin": 0o755, "etc": 0o755, "tmp": 0o1777, "root": 0o700, "var": 0o755}
    users = [f"{name}:x:{number}:{number}::/:/bin/sh" for name, number in image.accounts.items()]
    passwd = ["root:x:0:0:root:/root:/bin/sh", *users, "nobody:x:65534:65534:nobody:/:/bin/false", ""]
    own = [f"{name}:x:{number}:" for name, number in image.accounts.items()]
    more = [f"{name}:x:{number}:{','.join(members)}" for name, (number, members) in image.groups.items()]
    groups = ["root:x:0:", *own, *more, "nogroup:x:65534:", ""]
    texts = {"etc/passwd": "\n".join(passwd), "etc/group": "\n".join(groups), **image.texts}
    files = {*image.files, *texts, *image.links}
    directories |= {name: mode for name, mode in image.modes.items() if name not in files}
    for name in sorted(files):
        for parent in reversed(PurePosixPath(name).parents):
            if str(parent) != ".":
                directories.setdefault(str(parent), 0o755)
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for directory, mode in sorted(directories.items()):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            layer.addfile(entry)
        for name, text in sorted(texts.items()):
            _add(layer, name, text.encode(), mode=image.modes.get(name, 0o644))
        for name, source in sorted(image.files.items()):
            _add(layer, name, source.read_bytes(), mode=image.modes.get(name, 0o755))
        for name, target in sorted(image.links.items()):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, target, 0o777
            layer.addfile(entry)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
