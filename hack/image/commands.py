"""Commands that make the image, and their failures in a line."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}


class BuildError(Exception):
    """Something is missing, or a command failed; quotes what it said."""


def run(*argv: str, cwd: Path | None = None) -> None:
    """Run a command to its end.

    Raises:
        BuildError: it failed; with the last line that it wrote.
    """
    done = subprocess.run(
        argv, check=False, capture_output=True, text=True, cwd=cwd, env={**os.environ, **_ENVIRONMENT}
    )
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise BuildError(f"{' '.join(argv[:4])} …: {words[-1] if words else 'failed'}")
