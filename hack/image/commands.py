"""Run the commands that make the image; report a failure in one line."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

_ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}


class BuildError(Exception):
    """Something is missing, or a command failed; quotes the command's output."""


def run(*argv: str, cwd: Path | None = None, env: Mapping[str, str] = MappingProxyType({})) -> str:
    """Run a command with this process's environment and ``env``; return its output.

    Raises:
        BuildError: it failed; with the last line of its output.
    """
    done = subprocess.run(
        argv, check=False, capture_output=True, text=True, cwd=cwd, env={**os.environ, **_ENVIRONMENT, **env}
    )
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise BuildError(f"{' '.join(argv[:4])} …: {words[-1] if words else 'failed'}")
    return done.stdout
