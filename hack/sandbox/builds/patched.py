"""Patched Go modules, for software that cannot be built from the Go module proxy alone."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hack.sandbox.builds.programs import TOOLS
from hack.sandbox.command import command

_DOWNLOAD_SECONDS = 600.0
_VERSION = re.compile(r"^(?:--- a/|\+\+\+ b/|copy from )([^\s@]+@v[^\s/]+)/", re.MULTILINE)


async def flags(go: str, module: str, directory: Path) -> list[str]:
    """Return the flags with which Go builds a module of ``hack/tools`` with patched copies of other modules.

    File ``modules.patch`` is applied to a folder like that of Go's module cache, so its paths begin with
    ``a/<module>@<version>/``. Git's ``copy from`` adds a file that is equal to another one. Go's flag ``-overlay`` cannot
    replace the patch, because it refuses files of the module cache.

    Args:
        go: the command.
        module: folder under ``hack/tools``.
        directory: an existing folder for the copies.

    Raises:
        SandboxError: a module cannot be downloaded, or the patch does not fit.
    """
    source = TOOLS / module
    patch = source / "modules.patch"
    if not patch.exists():
        return []
    modfile = directory / "go.mod"
    await command(["cp", source / "go.mod", source / "go.sum", directory])
    for version in sorted(set(_VERSION.findall(patch.read_text(encoding="utf-8")))):
        done = await command([go, "mod", "download", "-json", version], cwd=source, timeout=_DOWNLOAD_SECONDS)
        copy = directory / version
        copy.mkdir(parents=True)
        # Files of the module cache are read-only.
        await command(["cp", "-r", "--no-preserve=mode", f"{json.loads(done.stdout)['Dir']}/.", copy])
        await command([go, "mod", "edit", f"-replace={version}={copy}", modfile])
    await command(["git", "apply", "--whitespace=nowarn", patch], cwd=directory)
    return [f"-modfile={modfile}"]
