"""The image's Python: what pip puts into its folder of packages, and the bytecode."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hack.image.commands import run

SOURCE = Path(__file__).resolve().parents[2]
PYTHON = "python3.11"
SITE = f"usr/local/lib/{PYTHON}/dist-packages"
CONSTRAINTS = Path(__file__).with_name("constraints.txt")


def project() -> dict[str, Any]:
    """What pyproject.toml says."""
    return tomllib.loads((SOURCE / "pyproject.toml").read_text(encoding="utf-8"))


def install_dependencies(root: Path) -> None:
    """Install the libraries that the project depends on, in the versions of the image.

    Raises:
        BuildError: one cannot be had.
    """
    _pip(
        "install",
        "--target",
        str(root / SITE),
        "--constraint",
        str(CONSTRAINTS),
        *_wheels_for(),
        *project()["project"]["dependencies"],
    )


def install_project(site: Path) -> None:
    """Build the project's wheel and unpack it into a folder of packages.

    Raises:
        BuildError: it cannot be built.
    """
    with tempfile.TemporaryDirectory() as work:
        # Without isolation where the build backend is at hand, so that a test needs no network.
        offline = ["--no-build-isolation", "--no-index"] if _importable("hatchling") else []
        _pip("wheel", "--no-deps", *offline, "--wheel-dir", work, str(SOURCE))
        (wheel,) = Path(work).glob("*.whl")
        _pip("install", "--no-deps", "--no-index", "--target", str(site), str(wheel))


def compile_all(
    root: Path, folders: Sequence[str], *, strip: str = "", prepend: str = "", optional: Sequence[str] = ()
) -> None:
    """Bytecode for every module, by the image's own Python: which proves that it runs, too.

    ``unchecked-hash``: the files of an image do not change, so nobody need look at their times.
    """
    places = [f"-s{strip}", f"-p{prepend}"] if strip else []
    skip = ["-x", "|".join(optional)] if optional else []
    argv = [f"/usr/bin/{PYTHON}", "-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash"]
    run("chroot", str(root), *argv, *places, *skip, *folders)


def _wheels_for() -> list[str]:
    """Wheels for the image's Python, whichever Python runs pip."""
    machine = os.uname().machine
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


def _importable(module: str) -> bool:
    return (
        subprocess.run(
            [sys.executable, "-c", f"import {module}"], check=False, capture_output=True
        ).returncode
        == 0
    )


def _pip(command: str, *arguments: str) -> None:
    run(
        sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", command,
        "--no-compile" if command == "install" else "--quiet", "--root-user-action=ignore"
        if command == "install" else "--quiet", *arguments,
    )  # fmt: skip
