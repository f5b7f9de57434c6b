"""Writes an OCI image archive with one layer per folder; the same files always give the same bytes.

Read by ``ctr image import``, ``podman load``, ``docker load`` and ``skopeo copy oci-archive:``.
Layout: https://github.com/opencontainers/image-spec/blob/main/image-layout.md
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_IMAGE_INDEX = "application/vnd.oci.image.index.v1+json"
_INDEX = "index.json"
_LEVEL = 6


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer, compressed."""

    blob: bytes
    diff_id: str
    """Digest of the tar before compression."""

    @property
    def digest(self) -> str:
        """Return ``sha256:…`` of the compressed bytes."""
        return _digest(self.blob)


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """How containers of the image start."""

    architecture: str
    """As Go names it: amd64, arm64."""
    user: str
    entrypoint: Sequence[str]
    env: Sequence[str]
    labels: Mapping[str, str] = field(default_factory=dict)
    working_directory: str = "/"


def layer(root: Path) -> Layer:
    """Return a folder as a layer: sorted, owned by root, all times zero."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            entry = archive.gettarinfo(path, arcname=str(path.relative_to(root)))
            entry.uid = entry.gid = entry.mtime = 0
            entry.uname = entry.gname = ""
            if entry.isreg():
                # Not as a hard link, which would name a path of this machine.
                entry.type, entry.linkname = tarfile.REGTYPE, ""
                with path.open("rb") as content:
                    archive.addfile(entry, content)
            else:
                archive.addfile(entry)
    raw = buffer.getvalue()
    return Layer(gzip.compress(raw, _LEVEL, mtime=0), _digest(raw))


def write(path: Path, *, name: str, config: ImageConfig, layers: Sequence[Layer]) -> str:
    """Write an image archive; return the digest of its manifest.

    Args:
        path: file to write.
        name: full name and tag, such as ``ghcr.io/virtual-node/virtual-node:0.1.0``.
        config: how containers of the image start.
        layers: bottom first.
    """
    image = _json(
        {
            "architecture": config.architecture,
            "os": "linux",
            "config": {
                "User": config.user,
                "Env": list(config.env),
                "Entrypoint": list(config.entrypoint),
                "WorkingDir": config.working_directory,
                "Labels": dict(config.labels),
            },
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
            "history": [{"created_by": "hack.image"} for _ in layers],
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(_CONFIG, image),
            "layers": [_descriptor(_LAYER, layer.blob) for layer in layers],
        }
    )
    platform = {"architecture": config.architecture, "os": "linux"}
    # Content of manifest.json, which `docker load` reads from the same archive.
    docker = [
        {
            "Config": _blob_path(_digest(image)),
            "RepoTags": [name],
            "Layers": [_blob_path(layer.digest) for layer in layers],
        }
    ]
    contents = {
        **_layout(name, {**_descriptor(_MANIFEST, manifest), "platform": platform}),
        "manifest.json": _json(docker),
        _blob_path(_digest(image)): image,
        _blob_path(_digest(manifest)): manifest,
        **{_blob_path(layer.digest): layer.blob for layer in layers},
    }
    _write(path, contents)
    return _digest(manifest)


def join(parts: Sequence[Path], path: Path, *, name: str) -> str:
    """Write one archive of the images of several architectures; return the digest of their index.

    Args:
        parts: archives of ``write``.
        path: file to write.
        name: full name and tag.
    """
    manifests: list[dict[str, object]] = []
    blobs: dict[str, bytes] = {}
    for part in parts:
        with tarfile.open(part) as opened:
            files = {member.name: opened.extractfile(member) for member in opened}
            contents = {name: file.read() for name, file in files.items() if file is not None}
        (manifest,) = json.loads(contents[_INDEX])["manifests"]
        manifests.append({key: value for key, value in manifest.items() if key != "annotations"})
        blobs |= {name: content for name, content in contents.items() if name.startswith("blobs/")}
    index = _json({"schemaVersion": 2, "mediaType": _IMAGE_INDEX, "manifests": manifests})
    layout = _layout(name, _descriptor(_IMAGE_INDEX, index))
    _write(path, {**layout, _blob_path(_digest(index)): index, **blobs})
    return _digest(index)


def _layout(name: str, descriptor: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files of an image layout with a single entry."""
    annotations = {
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": name.rpartition(":")[2],
    }
    index = {"schemaVersion": 2, "manifests": [{**descriptor, "annotations": annotations}]}
    return {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), _INDEX: _json(index)}


def _write(path: Path, contents: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        for file, content in contents.items():
            entry = tarfile.TarInfo(file)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))


def _descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _blob_path(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
