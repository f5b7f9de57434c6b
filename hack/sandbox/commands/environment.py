"""The file that a shell reads to use a sandbox: ``. .sandbox/env``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from hack.image.python_packages import project
from hack.sandbox.builds.programs import TOOLS
from hack.sandbox.errors import SandboxError
from hack.sandbox.sandbox import Sandbox

FILE = "env"


def write(sandbox: Sandbox, *, programs: Mapping[str, Path] | None = None) -> Path:
    """Write the file, and the folder ``bin`` that it puts on the PATH; return the file's path.

    Args:
        sandbox: its kubectl, its kubeconfigs and its folder are used.
        programs: further programs for the folder: name → path.

    Raises:
        SandboxError: virtual-node is not installed beside this Python.
    """
    place = sandbox.directory / "bin"
    place.mkdir(exist_ok=True)
    scripts = Path(sys.executable).parent
    found = {"kubectl": sandbox.binaries["kubectl"], **(programs or {})}
    found |= {name: scripts / name for name in project()["project"]["scripts"]}
    for name, path in found.items():
        if not path.exists():
            raise SandboxError(f"{path} is missing: run 'make venv'")
        link = place / name
        link.unlink(missing_ok=True)
        link.symlink_to(path)
    own = place / "sandbox"
    own.write_text(_script(sandbox.directory), encoding="utf-8")
    own.chmod(0o755)
    file = sandbox.directory / FILE
    file.write_text(text(place, {one.name: one.kubeconfig for one in sandbox.clusters}), encoding="utf-8")
    return file


def text(place: Path, kubeconfigs: Mapping[str, Path]) -> str:
    """Return what a shell reads: PATH, KUBECONFIG of the upper cluster, and a variable with each cluster's kubeconfig.

    Args:
        place: folder with the programs.
        kubeconfigs: cluster → kubeconfig, the upper cluster first.
    """
    quoted = {name: shlex.quote(str(path)) for name, path in kubeconfigs.items()}
    upper = next(iter(quoted.values()))
    lines = [f"export PATH={shlex.quote(str(place))}:$PATH", f"export KUBECONFIG={upper}"]
    lines += [f"export {name.upper()}={path}" for name, path in quoted.items()]
    return "\n".join([*lines, ""])


def _script(directory: Path) -> str:
    """Return a program that calls this sandbox's commands: ``sandbox pause lower2``."""
    python, root = shlex.quote(sys.executable), shlex.quote(str(TOOLS.parent.parent))
    return (
        "#!/bin/sh\n"
        f'PYTHONPATH={root} exec {python} -m hack.sandbox "$@" --directory {shlex.quote(str(directory))}\n'
    )
