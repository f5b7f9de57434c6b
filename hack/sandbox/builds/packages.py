"""Debian's packages that a real node needs; each installation is printed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from hack.sandbox.builds.programs import Progress
from hack.sandbox.errors import SandboxError

_PACKAGES = {
    "runc": "runc",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "sysctl": "procps",
    "mount": "mount",
    "strip": "binutils",
    "/bin/busybox": "busybox-static",
}


def ensure_packages(progress: Progress) -> None:
    """Install the packages that a real node needs, and print the progress.

    Raises:
        SandboxError: this process is not root, or packages cannot be installed; names them.
    """
    if os.geteuid() != 0:
        raise SandboxError("a real node needs root; leave --real-node out for simulated nodes (kwok)")
    missing = sorted({package for probe, package in _PACKAGES.items() if not _there(probe)})
    if not missing:
        return
    install(missing, progress)


def install(packages: Iterable[str], progress: Progress) -> None:
    """Install Debian packages, and print the progress.

    Raises:
        SandboxError: they cannot be installed; names them.
    """
    missing = sorted(packages)
    names = " ".join(missing)
    if shutil.which("apt-get") is None:
        raise SandboxError(f"a real node needs {names}; install them, or leave --real-node out")
    progress(f"installing Debian packages: {names}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *missing],
    ):
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise SandboxError(f"apt-get install {names}: {words[-1] if words else 'failed'}")


def _there(probe: str) -> bool:
    return Path(probe).exists() if probe.startswith("/") else shutil.which(probe) is not None
