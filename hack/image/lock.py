"""``python -m hack.image.lock``: write the versions of all libraries of the image and of ``make venv``.

The image's files name each library in one version, with the SHA-256 of its wheel for every architecture of the image.
``pip install --require-hashes`` then refuses all other files that a package index serves. The constraints of ``make venv``
and ``make docs`` have no hashes, because pip refuses hashes together with ``--editable``. They keep a new version on PyPI from changing
the result of a test. ``--upgrade`` takes the newest versions that pyproject.toml allows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hack.image.commands import BuildError
from hack.image.python_packages import BACKEND, CONSTRAINTS, LIBRARIES, project, wheels_for

MACHINES = ("x86_64", "aarch64")
_HEAD = "# Made by `python -m hack.image.lock`; newer versions: with --upgrade. Do not edit.\n"

Found = dict[str, tuple[str, set[str]]]
"""Library → version, and the hashes of its wheels."""


def render(found: Mapping[str, tuple[str, Iterable[str]]]) -> str:
    """Return a requirements file, with the hashes of libraries that have some."""
    lines = [_HEAD]
    for name, (version, hashes) in sorted(found.items()):
        lines.append(
            f"{name}=={version}" + "".join(f" \\\n    --hash={one}" for one in sorted(hashes)) + "\n"
        )
    return "".join(lines)


def pins(text: str) -> dict[str, str]:
    """Return library → version of a requirements file."""
    lines = [line.split()[0] for line in text.splitlines() if "==" in line and not line.startswith("#")]
    return dict(line.split("==", 1) for line in lines)


def hashes(reports: Iterable[Mapping[str, Any]]) -> Found:
    """Return what pip would install for each machine, from its installation reports.

    Raises:
        BuildError: the machines would get different versions, or a wheel has no SHA-256.
    """
    found: Found = {}
    for report in reports:
        for item in report["install"]:
            name, version = item["metadata"]["name"].lower().replace("_", "-"), item["metadata"]["version"]
            digest = item["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
            if not digest:
                raise BuildError(f"{name} {version}: the package index gives no SHA-256")
            there, known = found.setdefault(name, (version, set()))
            if there != version:
                raise BuildError(f"{name}: {there} for one machine and {version} for another")
            known.add(f"sha256:{digest}")
    return found


def _resolve(requirements: Sequence[str], machine: str) -> dict[str, Any]:
    """Ask pip what it would install for a machine."""
    flags = ["install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-", *wheels_for(machine)]
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", *flags, *requirements]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode:
        raise BuildError(f"pip: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _write(file: Path, requirements: Sequence[str], *, has_hashes: bool = True) -> None:
    reports = [_resolve(requirements, machine) for machine in MACHINES]
    found = {
        name: (version, known if has_hashes else ()) for name, (version, known) in hashes(reports).items()
    }
    file.write_text(render(found), encoding="utf-8")
    print(f"wrote {file}")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the three files; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hack.image.lock", description=__doc__.splitlines()[0])
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that are allowed")
    upgrade: bool = parser.parse_args(argv).upgrade
    declared = project()
    libraries, backend = declared["project"]["dependencies"], declared["build-system"]["requires"]

    def held(file: Path) -> list[str]:
        return [f"{name}=={version}" for name, version in pins(file.read_text(encoding="utf-8")).items()]

    def kept(file: Path) -> list[str]:
        return [] if upgrade else held(file)

    try:
        _write(LIBRARIES, [*libraries, *kept(LIBRARIES)])
        _write(BACKEND, [*backend, *kept(BACKEND)])
        # Tests run with the versions of the image.
        groups = declared["dependency-groups"]
        tools = ["pip", *groups["dev"], *groups["docs"], *groups["release"], *held(LIBRARIES), *held(BACKEND)]
        _write(CONSTRAINTS, [*tools, *kept(CONSTRAINTS)], has_hashes=False)
    except BuildError as error:
        print(f"lock: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
