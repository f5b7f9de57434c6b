"""The image's Python packages, installed by pip, and their bytecode."""

from __future__ import annotations

import os
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hack.image.commands import run

SOURCE = Path(__file__).resolve().parents[2]
PYTHON = "python3.11"
SITE = f"usr/local/lib/{PYTHON}/dist-packages"
LIBRARIES = Path(__file__).with_name("libraries.txt")
"""Every library of the image in one version, with the hashes of its wheels (``hack.image.lock``)."""
BACKEND = Path(__file__).with_name("backend.txt")
"""The build backend of the project's own wheel, in one version with hashes."""


CONSTRAINTS = SOURCE / "hack" / "constraints.txt"
"""Every library and tool of a developer's virtual environment in one version (``make venv``)."""


def project() -> dict[str, Any]:
    """Return the content of pyproject.toml."""
    return tomllib.loads((SOURCE / "pyproject.toml").read_text(encoding="utf-8"))


def install_dependencies(root: Path) -> None:
    """Install the project's dependencies in the versions of the image.

    Raises:
        BuildError: a dependency cannot be downloaded, or its wheel has another hash.
    """
    _install_locked(LIBRARIES, root / SITE)


def install_project(site: Path) -> None:
    """Build the project's wheel and unpack it into a folder of packages.

    Raises:
        BuildError: it cannot be built.
    """
    with tempfile.TemporaryDirectory() as work:
        backend = Path(work) / "backend"
        # An installed build backend is used, so that a test needs no network. Not pip's isolated environment,
        # which would install any version without a check of hashes.
        if find_spec("hatchling") is None:
            _install_locked(BACKEND, backend)
        path = {"PYTHONPATH": str(backend)} if backend.exists() else {}
        _pip(
            "wheel",
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
            "--wheel-dir",
            work,
            str(SOURCE),
            env=path,
        )
        (wheel,) = Path(work).glob("*.whl")
        _pip("install", "--no-deps", "--no-index", "--target", str(site), str(wheel))


def compile_all(
    root: Path, folders: Sequence[str], *, strip: str = "", prepend: str = "", optional: Sequence[str] = ()
) -> None:
    """Compile all modules except ``optional`` with the image's own Python; this also proves that Python runs.

    ``unchecked-hash``: the files of an image do not change, so their times need no check. Without columns, which tracebacks
    would underline, bytecode is a quarter smaller, also in memory.
    """
    places = [f"-s{strip}", f"-p{prepend}"] if strip else []
    skip = ["-x", "|".join(optional)] if optional else []
    argv = [f"/usr/bin/{PYTHON}", "-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash"]
    run("chroot", str(root), *argv, *places, *skip, *folders, env={"PYTHONNODEBUGRANGES": "1"})


def _install_locked(lock: Path, target: Path) -> None:
    """Install exactly the wheels that a file with hashes lists."""
    wheels = wheels_for(os.uname().machine)
    _pip("install", "--target", str(target), "--require-hashes", *wheels, "--requirement", str(lock))


def wheels_for(machine: str) -> list[str]:
    """Return pip's flags that select wheels for the image's Python, independent of the Python that runs pip.

    Args:
        machine: as ``uname -m`` prints it.
    """
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(36, 16, -1)]
    platforms += [f"manylinux2014_{machine}", f"manylinux_2_5_{machine}"]
    flags = [
        "--only-binary=:all:",
        "--implementation",
        "cp",
        "--python-version",
        PYTHON.removeprefix("python"),
    ]
    return [*flags, *(word for platform in platforms for word in ("--platform", platform))]


def _pip(command: str, *arguments: str, env: Mapping[str, str] = MappingProxyType({})) -> None:
    run(
        sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", command,
        "--no-compile" if command == "install" else "--quiet", "--root-user-action=ignore"
        if command == "install" else "--quiet", *arguments, env=env,
    )  # fmt: skip
