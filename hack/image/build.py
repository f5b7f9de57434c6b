"""Build the image here, without Docker: ``python -m hack.image``.

The lower layer (Python and libraries) is kept in the user's cache under a digest of its recipe. The layer
that changes daily, the project itself, takes seconds.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hack.image import archive, debian, rootfs, sbom
from hack.image.python_packages import project
from hack.sandbox.builds.images import architecture
from hack.sandbox.builds.programs import cache_directory

REPOSITORY = "ghcr.io/virtual-node/virtual-node"
ENVIRONMENT = (
    "PATH=/usr/bin",
    "LANG=C.UTF-8",
    # The file system is read-only and already contains bytecode.
    "PYTHONDONTWRITEBYTECODE=1",
    "PYTHONUNBUFFERED=1",
)
ENTRYPOINT = ("virtual-node",)
Progress = Callable[[str], None]


def version() -> str:
    """Return the project's version, which is the image's tag."""
    return str(project()["project"]["version"])


def build(output: Path, *, name: str = "", progress: Progress = lambda _: None) -> str:
    """Write the image of the project's current files, and its SBOM in the same folder; return the manifest's digest.

    Args:
        output: the archive to write.
        name: full image name and tag; empty: the project's own, tagged with its version.
        progress: called with each step.

    Raises:
        BuildError: it cannot be built here; the text says what to do.
    """
    files = ensure_base(progress=progress)
    with tempfile.TemporaryDirectory() as work:
        app = Path(work) / "app"
        with _locked(files.parent / "lock"):
            rootfs.application(app, base_root=files)
        layers = [_base_layer(files), archive.layer(app)]
        shutil.copyfile(app / sbom.PLACE, sbom_path(output))
    config = archive.ImageConfig(
        architecture=architecture(),
        user=f"{debian.USER}:{debian.USER}",
        entrypoint=ENTRYPOINT,
        env=ENVIRONMENT,
        labels={
            "org.opencontainers.image.title": "virtual-node",
            "org.opencontainers.image.licenses": "Apache-2.0",
            "org.opencontainers.image.version": version(),
        },
    )
    return archive.write(output, name=name or f"{REPOSITORY}:{version()}", config=config, layers=layers)


def sbom_path(output: Path) -> Path:
    """Return where the SBOM of an image archive is written."""
    return output.with_suffix(".cdx.json")


def ensure_base(*, progress: Progress = lambda _: None) -> Path:
    """Return the folder with Python and the libraries; create it if it is not in the cache.

    Raises:
        BuildError: it cannot be made here; the text says what to do.
    """
    home = cache_directory() / "image" / _recipe()
    home.mkdir(parents=True, exist_ok=True)
    with _locked(home / "lock"):
        if not (home / "layer.json").exists():
            progress("image: unpacking Python and the libraries")
            for leftover in ("base", "packages"):
                shutil.rmtree(home / leftover, ignore_errors=True)
            rootfs.base(home / "base", work=home / "packages")
            shutil.rmtree(home / "packages")
            made = archive.layer(home / "base")
            (home / "layer.tar.gz").write_bytes(made.blob)
            (home / "layer.json").write_text(json.dumps({"diff_id": made.diff_id}), encoding="utf-8")
    return home / "base"


def _base_layer(files: Path) -> archive.Layer:
    home = files.parent
    about = json.loads((home / "layer.json").read_text(encoding="utf-8"))
    return archive.Layer((home / "layer.tar.gz").read_bytes(), about["diff_id"])


def _recipe() -> str:
    """Return a digest of all inputs of the lower layer; it names the layer's folder in the cache."""
    recipe = Path(__file__).parent
    parts = [
        *(path.read_bytes() for path in sorted([*recipe.glob("*.py"), *recipe.glob("*.txt")])),
        json.dumps(project()["project"]["dependencies"]).encode(),
        os.uname().machine.encode(),
    ]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock that lets only one process build."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
