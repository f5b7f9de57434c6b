"""The programs of this project: those of ``[project.scripts]`` in pyproject.toml."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from controller_runtime.process.program import Program, load
from hack.image.python_packages import project
from virtual_node.config import command_line

DAEMON = command_line.PROGRAM.name


@functools.cache
def programs() -> Mapping[str, Program[Any]]:
    """Return the declaration of every program by its name, the virtual node's first."""
    scripts = map(load, project()["project"]["scripts"].values())
    # The scripts of the virtual node run its commands, of which its daemon is one.
    declared = [command_line.PROGRAM, *(script for script in scripts if isinstance(script, Program))]
    return {program.name: program for program in declared}
