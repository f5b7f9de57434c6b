"""The kubectl plugin for krew: ``virtual-node``'s command with a Python of its own, for machines without one."""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

from hack.image.commands import run
from hack.image.python_packages import SOURCE, project
from hack.sandbox.builds.images import architecture

PROGRAM = "kubectl-virtual_node"
_FOLDER = "lib"


def archive_name(machine: str) -> str:
    """Return the file name for an architecture, as Go names it."""
    return f"{PROGRAM}-linux-{machine}.tar.gz"


def build(dist: Path) -> None:
    """Write the archive for this machine's architecture.

    Raises:
        BuildError: PyInstaller, strip or Python's shared library is missing (Debian: ``binutils``, ``libpython3.11``).
    """
    module, _, function = project()["project"]["scripts"][PROGRAM].partition(":")
    with tempfile.TemporaryDirectory() as work:
        script = Path(work) / f"{PROGRAM}.py"
        script.write_text(
            f"import sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n", "utf-8"
        )
        packages = project()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        run(
            *(sys.executable, "-m", "PyInstaller", "--noconfirm", "--strip", "--log-level=WARN", "--contents-directory", _FOLDER),
            *("--paths", str(SOURCE), "--distpath", work, "--workpath", f"{work}/work", "--specpath", work),
            *("--copy-metadata", "virtual-node"),
            *(f"--collect-{kind}={name}" for name in packages for kind in ("submodules", "data")),
            str(script),
            cwd=SOURCE,
        )  # fmt: skip
        with tarfile.open(dist / archive_name(architecture()), "w:gz") as made:
            made.add(SOURCE / "LICENSE", "LICENSE")
            for path in sorted((Path(work) / PROGRAM).iterdir()):
                made.add(path, path.name)
