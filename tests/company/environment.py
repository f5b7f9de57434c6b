"""Python environments with the PyPI packages of the files in ``python``, kept in the cache."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

from hack.sandbox.builds.programs import Progress, cache_directory
from hack.sandbox.command import command
from tests.company.software import lock_file

_SECONDS = 1200.0


async def ensure(name: str, progress: Progress) -> Path:
    """Return the Python of an environment; a change of its file makes a new one.

    Raises:
        SandboxError: the packages cannot be installed.
    """
    lock = lock_file(name)
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    place = cache_directory() / f"company-{name}-{digest}"
    python = place / "bin" / "python"
    if (place / "complete").exists():
        return python
    progress(f"installing the packages of {lock.name} from PyPI, kept in {place}")
    shutil.rmtree(place, ignore_errors=True)
    await command([sys.executable, "-m", "venv", place], timeout=_SECONDS)
    pip: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    await command([*pip, "--requirement", lock], timeout=_SECONDS)
    (place / "complete").touch()
    return python
