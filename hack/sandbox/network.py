"""A bridge of our own: node address, pod gateway and where apiservers listen when a real node needs them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from hack.sandbox.errors import SandboxError


@dataclass(frozen=True, slots=True)
class Bridge:
    """A Linux bridge and its /24."""

    name: str
    number: int

    @property
    def address(self) -> str:
        """The host's address on it."""
        return f"10.200.{self.number}.1"

    @property
    def subnet(self) -> str:
        """Where pods get their addresses."""
        return f"10.200.{self.number}.0/24"


def make_bridge() -> Bridge:
    """Make the first bridge that is free on this machine.

    Raises:
        SandboxError: the kernel does not let us.
    """
    taken = run("ip", "-o", "-4", "addr")
    for number in range(1, 250):
        bridge = Bridge(f"vnode{number}", number)
        if f"10.200.{number}." in taken:
            continue
        try:
            run("ip", "link", "add", bridge.name, "type", "bridge")
            run("ip", "addr", "add", f"{bridge.address}/24", "dev", bridge.name)
            run("ip", "link", "set", bridge.name, "up")
        except SandboxError as error:
            if "File exists" in str(error):
                continue
            raise
        return bridge
    raise SandboxError("no free 10.200.x.0/24 on this machine for a real node")


def remove_bridge(name: str) -> None:
    """Remove a bridge; one that is gone already is fine."""
    subprocess.run(["ip", "link", "delete", name], check=False, capture_output=True)


def run(*argv: str) -> str:
    """Run a short command; returns what it printed.

    Raises:
        SandboxError: it is not there, or fails; quotes what it said.
    """
    try:
        done = subprocess.run(argv, check=False, capture_output=True, text=True)
    except OSError as error:
        raise SandboxError(f"{argv[0]}: {error.strerror}") from None
    if done.returncode:
        raise SandboxError(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
