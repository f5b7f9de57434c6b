"""The source of Go modules, which has the manifests that their projects publish."""

from __future__ import annotations

import json
from pathlib import Path

from hack.sandbox.builds.go_build import go_command
from hack.sandbox.builds.programs import PROGRAMS, TOOLS
from hack.sandbox.command import command
from tests.company.software import module_path


async def source(program: str) -> Path:
    """Return the folder with the source of a program's module, downloaded if it is missing.

    Raises:
        SandboxError: it cannot be downloaded.
    """
    module = PROGRAMS[program].module
    argv = [str(await go_command(print, module)), "mod", "download", "-json", module_path(program)]
    done = await command(argv, cwd=TOOLS / module, timeout=600)
    return Path(json.loads(done.stdout)["Dir"])
