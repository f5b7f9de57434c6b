"""What an entry of the suite says about the software that it runs."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hack.sandbox.builds.programs import PROGRAMS, TOOLS
from tests.company.place import Place

_LOCKS = Path(__file__).with_name("python")
POM = Path(__file__).with_name("java") / "pom.xml"
"""Java libraries and their versions."""
Observations = Mapping[str, Any]
"""Name of an observation → value that is equal in every run that works, such as the reasons of a pod's events."""


@dataclass(frozen=True, slots=True)
class Software:
    """One program of others, or several that do one job together."""

    name: str
    """Argument of the command, and the row's name."""
    job: str
    """What runs, for the table."""
    run: Callable[[Place], Awaitable[Observations]]
    """Do the job at a place; raises an error if the result is wrong."""
    programs: tuple[str, ...] = ()
    """Go programs of ``hack.sandbox.builds.programs``."""
    environment: str = ""
    """File of ``python`` with the PyPI packages of the entry's environment, without its suffix; empty: none."""
    packages: tuple[str, ...] = ()
    """Packages of the environment that the row names."""
    libraries: tuple[str, ...] = ()
    """Java libraries of ``java/pom.xml`` that the row names."""
    both: bool = False
    """Whether the software also stays installed in the lower cluster while it runs in the upper one."""

    @property
    def versions(self) -> str:
        """Return the pinned versions, such as ``kueue v0.17.0``."""
        texts = list(
            dict.fromkeys(f"{PROGRAMS[name].module} {module_version(name)}" for name in self.programs)
        )
        pinned = python_pins(self.environment) if self.environment else {}
        texts += [f"{name} {pinned[name]}" for name in self.packages]
        return ", ".join([*texts, *(f"{name} {java_pins()[name]}" for name in self.libraries)])


def lock_file(environment: str) -> Path:
    """Return the file with the packages of an environment and their versions."""
    return _LOCKS / f"{environment}.txt"


def python_pins(environment: str) -> dict[str, str]:
    """Return package → version of an environment."""
    text = lock_file(environment).read_text(encoding="utf-8")
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", text, flags=re.MULTILINE))


def java_pins() -> dict[str, str]:
    """Return library → version of the Java libraries."""
    pair = re.compile(r"<artifactId>([^<]+)</artifactId>\s*<version>([^<]+)</version>")
    return dict(pair.findall(POM.read_text(encoding="utf-8")))


def module_path(program: str) -> str:
    """Return the Go module that has a program's package: the longest one that is required in its go.mod.

    A program whose source is here is named after the module that it uses.
    """
    package, module = PROGRAMS[program].package, PROGRAMS[program].module
    return max(
        (
            path
            for path in _required(module)
            if _within(package, path)
            or (package == "." and re.sub(r"/v\d+$", "", path).endswith(f"/{module}"))
        ),
        key=len,
    )


def module_version(program: str) -> str:
    """Return the pinned version of the Go module that has a program."""
    return _required(PROGRAMS[program].module)[module_path(program)]


def _within(package: str, path: str) -> bool:
    return f"{package}/".startswith(f"{path}/")


def _required(module: str) -> dict[str, str]:
    text = (TOOLS / module / "go.mod").read_text(encoding="utf-8")
    return dict(re.findall(r"^(?:require)?\s+(\S+/\S+) (v\S+)", text, flags=re.MULTILINE))
