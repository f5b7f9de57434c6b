"""``python -m hack.release STEP``: one step of a release, whose files are written to ``dist/``."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Sequence

import yaml

from hack.image import archive, build
from hack.image.commands import BuildError, run
from hack.image.python_packages import SOURCE
from hack.release import changelog, krew, plugin, upgrade
from hack.sandbox import SandboxError
from hack.sandbox.builds import binaries
from hack.sandbox.builds.images import architecture

CHART = SOURCE / "charts" / "virtual-node"
DIST = SOURCE / "dist"


def check(tag: str) -> None:
    """Print the version if the tag, the wheel, the chart and the changelog agree on it.

    Raises:
        BuildError: they do not; names the file.
    """
    version = build.version()
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    for name, value in (
        ("tag", tag.removeprefix("v")),
        ("charts/virtual-node/Chart.yaml: version", chart["version"]),
        ("charts/virtual-node/Chart.yaml: appVersion", chart["appVersion"]),
    ):
        if value != version:
            raise BuildError(f"{name} is {value}, and pyproject.toml has {version}")
    changelog.notes(version)
    print(version)


def wheel() -> None:
    """Write the wheel and the source archive."""
    run(sys.executable, "-m", "hatchling", "build", "--directory", str(DIST / "pypi"), cwd=SOURCE)


def chart() -> None:
    """Write the package of the chart."""
    helm = asyncio.run(binaries.helm())
    run(str(helm), "package", str(CHART), "--destination", str(DIST))


def image() -> None:
    """Write the image for this machine's architecture."""
    print(build.build(DIST / f"image-{architecture()}.tar", progress=print))


def index() -> None:
    """Write one image archive of all architectures, from those in ``dist/``; print its digest."""
    parts = sorted(DIST.glob("image-*.tar"))
    name = f"{build.REPOSITORY}:{build.version()}"
    print(archive.join(parts, DIST / "virtual-node-image.tar", name=name))


def notes() -> None:
    """Write the changelog of this version."""
    (DIST / "notes.md").write_text(changelog.notes(build.version()) + "\n", encoding="utf-8")


TAGGED = {"check": check, "upgrade": upgrade.run}
"""Steps with a tag: that of this release, and that of the earlier one."""
STEPS = {
    "wheel": wheel,
    "chart": chart,
    "image": image,
    "index": index,
    "plugin": lambda: plugin.build(DIST),
    "krew": lambda: krew.write(DIST),
    "notes": notes,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one step; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hack.release", description=__doc__.splitlines()[0])
    steps = parser.add_subparsers(dest="step", required=True)
    for name in TAGGED:
        steps.add_parser(name).add_argument("tag", help="such as v0.1.0")
    for name in STEPS:
        steps.add_parser(name)
    flags = parser.parse_args(argv)
    DIST.mkdir(exist_ok=True)
    try:
        if flags.step in TAGGED:
            TAGGED[flags.step](flags.tag)
        else:
            STEPS[flags.step]()
    except (BuildError, SandboxError, subprocess.SubprocessError) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
