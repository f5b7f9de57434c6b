"""The manifest with which krew installs the kubectl plugin.

Source: https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import yaml

from hack.image import build
from hack.image.commands import BuildError
from hack.release import plugin

HOME = "https://github.com/virtual-node/virtual-node"
ARCHITECTURES = ("amd64", "arm64")
_DESCRIPTION = """\
Shows, checks and explains virtual nodes, each of which represents a whole
lower cluster: status, doctor, diagnose, inspect, drain, and lower-cluster join.
"""


def manifest(digests: dict[str, str], *, version: str) -> dict[str, Any]:
    """Return the manifest.

    Args:
        digests: architecture → SHA-256 of its archive.
        version: of the release, such as ``0.1.0``.
    """
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "virtual-node"},
        "spec": {
            "version": f"v{version}",
            "homepage": HOME,
            "shortDescription": "Show and check virtual nodes of lower clusters",
            "description": _DESCRIPTION,
            "caveats": "Needs glibc 2.36 or newer, as in Debian 12.\n",
            "platforms": [
                {
                    "selector": {"matchLabels": {"os": "linux", "arch": machine}},
                    "uri": f"{HOME}/releases/download/v{version}/{plugin.archive_name(machine)}",
                    "sha256": digest,
                    "bin": plugin.PROGRAM,
                }
                for machine, digest in digests.items()
            ],
        },
    }


def write(dist: Path) -> None:
    """Write the manifest of the archives in ``dist``.

    Raises:
        BuildError: the archive of an architecture is missing.
    """
    digests = {}
    for machine in ARCHITECTURES:
        file = dist / plugin.archive_name(machine)
        if not file.exists():
            raise BuildError(f"{file} is missing; run `python -m hack.release plugin` on {machine}")
        digests[machine] = hashlib.sha256(file.read_bytes()).hexdigest()
    text = yaml.safe_dump(manifest(digests, version=build.version()), sort_keys=False)
    (dist / "virtual-node.yaml").write_text(text, encoding="utf-8")
