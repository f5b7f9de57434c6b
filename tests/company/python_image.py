"""Images with Python and the packages of an environment: the project's own base layer, and a layer of packages."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hack.image import archive, build
from hack.image.python_packages import PYTHON
from hack.sandbox.builds.images import architecture
from hack.sandbox.builds.programs import Progress, cache_directory
from hack.sandbox.command import command
from tests.company.software import lock_file

SITE = "opt/site"
"""Folder of the packages in the image."""
_SECONDS = 1200.0


@dataclass(frozen=True, slots=True)
class Addition:
    """What an image has besides Python and its packages."""

    write: Callable[[Path, Path], Awaitable[None]]
    """Add files to the image's root; the second argument is the base layer."""
    recipe: bytes
    """All inputs of the files; a change makes a new image."""
    entrypoint: Sequence[str]
    environment: Sequence[str]
    """``NAME=value`` of further variables."""


async def write(environment: str, progress: Progress, addition: Addition | None = None) -> tuple[str, Path]:
    """Return the name and the archive of an image, made once and kept in the cache.

    Without an addition, the image has no shell and no entrypoint. Commands of the packages, such as ``dask-worker``, are
    on its PATH.

    Args:
        environment: a file of ``python``, without its suffix.
        progress: called with each step.
        addition: what the image has besides; None: nothing.

    Raises:
        SandboxError: the packages cannot be installed.
    """
    lock = lock_file(environment)
    files = build.ensure_base(progress=progress)
    recipe = lock.read_bytes() + str(files).encode() + Path(__file__).read_bytes()
    recipe += addition.recipe if addition else b""
    digest = hashlib.sha256(recipe).hexdigest()[:12]
    path = cache_directory() / "company-images" / f"{digest}.tar"
    name = f"company.example/python:{digest}"
    if not path.exists():
        progress(f"making an image with the packages of {lock.name}, kept in {path}")
        path.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as work:
            root = Path(work) / "root"
            await _install(lock, root)
            if addition:
                await addition.write(root, files)
            modules = (files / "usr" / "lib" / PYTHON / "lib-dynload").glob("*.so")
            await add_libraries(root, files, [*modules, *root.rglob("*.so")])
            variables = [*build.ENVIRONMENT, f"PYTHONPATH=/{SITE}", "HOME=/tmp"]
            config = archive.ImageConfig(
                architecture=architecture(),
                user="65532:65532",
                entrypoint=addition.entrypoint if addition else (),
                env=[*variables, *(addition.environment if addition else ())],
            )
            unfinished = Path(work) / "image.tar"
            archive.write(
                unfinished, name=name, config=config, layers=[build._base_layer(files), archive.layer(root)]
            )
            unfinished.rename(path)
    return name, path


async def add_libraries(root: Path, base: Path, binaries: Sequence[Path]) -> None:
    """Copy this machine's libraries that binaries need and the base layer lacks, such as that of C++."""
    done = await command(["ldd", *binaries], check=False)
    for library in {Path(word) for word in done.stdout.split() if word.startswith("/lib/")}:
        place = library.relative_to("/")
        if not (base / "usr" / place).exists():
            (root / "usr" / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, root / "usr" / place)


async def _install(lock: Path, root: Path) -> None:
    """Install packages for the Python of the image, which may differ from this one; those without wheels are pure Python."""
    site = root / SITE
    pip: list[str | Path] = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--no-compile", "--target", site]
    version = PYTHON.removeprefix("python")
    await command(
        [*pip, f"--python-version={version}", "--prefer-binary", "--no-deps", "--requirement", lock],
        timeout=_SECONDS,
    )
    # The image's files have no times and are not writable, so that Python would compile them at every start.
    compileall: list[str | Path] = [
        sys.executable,
        "-m",
        "compileall",
        "-q",
        "--invalidation-mode=unchecked-hash",
        "-s",
        root,
        site,
    ]
    await command(compileall, check=False, timeout=_SECONDS)
    programs = root / "usr" / "bin"
    programs.mkdir(parents=True)
    for script in filter(Path.is_file, (site / "bin").iterdir()):
        lines = script.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        if lines and lines[0].startswith("#!") and "python" in lines[0]:
            target = programs / script.name
            target.write_text("".join([f"#!/usr/bin/{PYTHON}\n", *lines[1:]]), encoding="utf-8")
            target.chmod(0o755)
    shutil.rmtree(site / "bin")
