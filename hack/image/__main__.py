"""``python -m hack.image``: build the image, optionally at a given path."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hack.image import build
from hack.image.commands import BuildError


def main() -> int:
    """Write the archive and print how to use it."""
    parser = argparse.ArgumentParser(prog="python -m hack.image", description=build.__doc__.splitlines()[0])
    default = f"{build.REPOSITORY}:{build.version()}"
    parser.add_argument("--tag", default=default, metavar="NAME:TAG", help=f"full name ({default})")
    parser.add_argument(
        "--output", type=Path, default=Path("virtual-node-image.tar"), metavar="FILE", help="(%(default)s)"
    )
    flags = parser.parse_args()
    try:
        digest = build.build(flags.output, name=flags.tag, progress=lambda text: print(text, file=sys.stderr))
    except BuildError as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    size = flags.output.stat().st_size / 1e6
    print(f"{flags.output}: {flags.tag} ({digest}, {size:.0f} MB)")
    print(f"  its SBOM (CycloneDX): {build.sbom_path(flags.output)}")
    print(f"  ctr -n k8s.io image import {flags.output}    or    docker load -i {flags.output}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
