"""The programs that a sandbox runs: where each is built from, where it is kept, which version it is."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Progress = Callable[[str], None]
Version = tuple[int, int]
TOOLS = Path(__file__).resolve().parent.parent / "tools"
KUBERNETES_VERSION = "1.34.4"
HELM_MAJOR = os.environ.get("HELM_MAJOR") or "4"
"""3 or 4: the chart, its tests and the sandbox work with either. Tests use the one that most people install today."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program and how it is built."""

    name: str
    module: str
    """Folder under ``hack/tools``."""
    package: str
    test: bool = False
    """The package's tests, as a program (``go test -c``)."""

    @property
    def output(self) -> str:
        """The file name that Go gives it: the package's last element that is no major version."""
        if self.test:
            return self.name
        if self.package == ".":
            return self.module
        elements = self.package.split("/")
        return elements[-2] if re.fullmatch(r"v\d+", elements[-1]) else elements[-1]


def _kubernetes(*names: str) -> dict[str, Program]:
    return {name: Program(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}") for name in names}


PROGRAMS: dict[str, Program] = {
    "etcd": Program("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    **_kubernetes(
        "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet", "kube-proxy"
    ),
    "agnhost": Program("agnhost", "kubernetes", "k8s.io/kubernetes/test/images/agnhost"),
    "nonewprivs": Program("nonewprivs", "kubernetes", "k8s.io/kubernetes/test/images/nonewprivs"),
    "ginkgo": Program("ginkgo", "kubernetes", "github.com/onsi/ginkgo/v2/ginkgo"),
    "e2e.test": Program("e2e.test", "e2e", "k8s.io/kubernetes/test/e2e", test=True),
    "metrics-server": Program(
        "metrics-server", "metrics-server", "sigs.k8s.io/metrics-server/cmd/metrics-server"
    ),
    "pause": Program("pause", "pause", "."),
    "coredns": Program("coredns", "coredns", "."),
    "helm": Program("helm", f"helm{HELM_MAJOR}", f"helm.sh/helm/v{HELM_MAJOR}/cmd/helm"),
    "kwok": Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"),
}
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")


def cache_directory() -> Path:
    """Where programs are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "virtual-node"


def parse_version(text: str) -> Version | None:
    """The first ``major.minor.patch`` in what a program says of itself."""
    match = re.search(r"(\d+)\.(\d+)\.\d+", text)
    return (int(match[1]), int(match[2])) if match else None


def home(module: str) -> Path:
    """The cache folder of one module's programs: another go.mod is another folder."""
    files = sorted(path for path in (TOOLS / module).iterdir() if path.is_file())
    pinned = b"".join(path.read_bytes() for path in files)
    return cache_directory() / "bin" / f"{module}-{hashlib.sha256(pinned).hexdigest()[:12]}"
