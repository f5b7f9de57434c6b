"""The programs that a sandbox runs: source, cache folder and version of each."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hack.sandbox.errors import SandboxError

Progress = Callable[[str], None]
Version = tuple[int, int]
TOOLS = Path(__file__).resolve().parents[2] / "tools"
KUBERNETES_VERSION = "1.37.2"
KUBERNETES_MINOR = KUBERNETES_VERSION.rpartition(".")[0]
OTHER_KUBERNETES = {"1.34": "1.34.4", "1.35": "1.35.4", "1.36": "1.36.3"}
"""API servers for tests of version skew: minor version → the newest patch that is complete in the Go module proxy.

Each is pinned in ``hack/tools/kubernetes-<minor>``. Controller manager and scheduler are the default ones, which
emulate that version.
"""
OLD_KUBECTL = ("1.31", "1.31.0")
"""Minor version and patch of an old kubectl, which has another stream protocol than today's."""
HELM_MAJOR = os.environ.get("HELM_MAJOR") or "4"
"""Major version of Helm that tests use, 3 or 4; the chart and the sandbox work with both."""


@dataclass(frozen=True, slots=True)
class Program:
    """One program and its build."""

    name: str
    module: str
    """Folder under ``hack/tools``."""
    package: str
    test: bool = False
    """Whether to build the package's tests (``go test -c``)."""
    tags: tuple[str, ...] = ()
    """Build tags; the programs of a module are built with those of all."""

    @property
    def output(self) -> str:
        """Return the file name that Go gives it: the package's last element that is no major version."""
        if self.test:
            return self.name
        if self.package == ".":
            return self.module
        elements = self.package.split("/")
        return elements[-2] if re.fullmatch(r"v\d+", elements[-1]) else elements[-1]


def _kubernetes(names: Iterable[str], suffix: str = "") -> dict[str, Program]:
    module = f"kubernetes{suffix}"
    return {
        f"{name}{suffix}": Program(f"{name}{suffix}", module, f"k8s.io/kubernetes/cmd/{name}")
        for name in names
    }


HELMS = {major: Program("helm", f"helm{major}", f"helm.sh/helm/v{major}/cmd/helm") for major in ("3", "4")}
"""Major version → Helm. Version 4 takes several times as long to build as version 3."""
SERVERS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
PROGRAMS: dict[str, Program] = {
    "etcd": Program("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    **_kubernetes((*SERVERS, "kubectl", "kubelet", "kube-proxy")),
    **{
        name: program
        for minor in OTHER_KUBERNETES
        for name, program in _kubernetes(["kube-apiserver"], f"-{minor}").items()
    },
    **_kubernetes(["kubectl"], f"-{OLD_KUBECTL[0]}"),
    "agnhost": Program("agnhost", "kubernetes", "k8s.io/kubernetes/test/images/agnhost"),
    "nonewprivs": Program("nonewprivs", "kubernetes", "k8s.io/kubernetes/test/images/nonewprivs"),
    "ginkgo": Program("ginkgo", "kubernetes", "github.com/onsi/ginkgo/v2/ginkgo"),
    "e2e.test": Program("e2e.test", "e2e", "k8s.io/kubernetes/test/e2e", test=True),
    "metrics-server": Program(
        "metrics-server", "metrics-server", "sigs.k8s.io/metrics-server/cmd/metrics-server"
    ),
    "containerd": Program("containerd", "containerd", "."),
    "containerd-shim-runc-v2": Program(
        "containerd-shim-runc-v2",
        "containerd",
        "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
    ),
    "pause": Program("pause", "pause", "."),
    "coredns": Program("coredns", "coredns", "."),
    "dra-driver": Program("dra-driver", "dra-driver", "."),
    "helm": HELMS[HELM_MAJOR],
    "kwok": Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    "stages": Program("stages", "kwok", "./stages"),
    **{
        f"konnectivity-{part}": Program(
            f"konnectivity-{part}", "konnectivity", f"sigs.k8s.io/apiserver-network-proxy/cmd/{part}"
        )
        for part in ("server", "agent")
    },
    # Software of others, for tests/company.
    "kueue": Program("kueue", "kueue", "sigs.k8s.io/kueue/cmd/kueue"),
    "jobset": Program("jobset", "jobset", "sigs.k8s.io/jobset"),
    "lws": Program("lws", "lws", "sigs.k8s.io/lws/cmd"),
    "prometheus": Program(
        "prometheus",
        "prometheus",
        "github.com/prometheus/prometheus/cmd/prometheus",
        # Without the service discoveries of clouds, which are most of the packages.
        tags=("remove_all_sd", "enable_kubernetes_sd"),
    ),
    "prometheus-operator": Program(
        "prometheus-operator",
        "prometheus-operator",
        "github.com/prometheus-operator/prometheus-operator/cmd/operator",
    ),
    "prometheus-config-reloader": Program(
        "prometheus-config-reloader",
        "prometheus-operator",
        "github.com/prometheus-operator/prometheus-operator/cmd/prometheus-config-reloader",
    ),
    "kube-state-metrics": Program("kube-state-metrics", "kube-state-metrics", "k8s.io/kube-state-metrics/v2"),
    **{
        name: Program(name, "istio", f"istio.io/istio/pilot/cmd/{name}")
        for name in ("pilot-discovery", "pilot-agent")
    },
    "external-dns": Program("external-dns", "external-dns", "sigs.k8s.io/external-dns"),
    "k9s": Program("k9s", "k9s", "github.com/derailed/k9s"),
    "stern": Program("stern", "stern", "github.com/stern/stern"),
    "descheduler": Program("descheduler", "descheduler", "sigs.k8s.io/descheduler/cmd/descheduler"),
    "client-go": Program("client-go", "client-go", "."),
    "gitops-engine": Program("gitops-engine", "gitops-engine", "."),
    **{
        f"cert-manager-{part}": Program(
            f"cert-manager-{part}", "cert-manager", f"github.com/cert-manager/cert-manager/cmd/{part}"
        )
        for part in ("controller", "webhook", "cainjector")
    },
    **{
        f"vpa-{part}": Program(
            f"vpa-{part}", "vertical-pod-autoscaler", f"k8s.io/autoscaler/vertical-pod-autoscaler/pkg/{part}"
        )
        for part in ("recommender", "updater")
    },
    **{
        name: Program(name, "argo-workflows", f"github.com/argoproj/argo-workflows/v4/cmd/{name}")
        for name in ("workflow-controller", "argoexec")
    },
    "ray-operator": Program("ray-operator", "kuberay", "github.com/ray-project/kuberay/ray-operator"),
}
SIMULATION = ("kwok", "stages")
NODE = ("containerd", "containerd-shim-runc-v2", "kubelet", "pause")
CONTROL_PLANE = ("etcd", *SERVERS, "kubectl")


def apiserver(minor: str) -> str:
    """Return the program that is the API server of a minor version.

    Raises:
        SandboxError: the sandbox does not build that version.
    """
    if minor == KUBERNETES_MINOR:
        return "kube-apiserver"
    if minor not in OTHER_KUBERNETES:
        known = ", ".join([*OTHER_KUBERNETES, KUBERNETES_MINOR])
        raise SandboxError(f"no Kubernetes {minor} here; there is {known}")
    return f"kube-apiserver-{minor}"


def kubernetes_version(module: str) -> str:
    """Return the Kubernetes version that the programs of a module report."""
    other = {**OTHER_KUBERNETES, OLD_KUBECTL[0]: OLD_KUBECTL[1]}
    return other.get(module.removeprefix("kubernetes-"), KUBERNETES_VERSION)


def cache_directory() -> Path:
    """Return the folder of programs, kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "virtual-node"


def parse_version(text: str) -> Version | None:
    """Return major and minor of the first ``major.minor.patch`` in a text; None if it has none."""
    match = re.search(r"(\d+)\.(\d+)\.\d+", text)
    return (int(match[1]), int(match[2])) if match else None


def home(module: str) -> Path:
    """Return the cache folder of one module's programs; a change to any of the module's files gives another folder."""
    files = sorted(path for path in (TOOLS / module).iterdir() if path.is_file())
    pinned = b"".join(path.read_bytes() for path in files)
    return cache_directory() / "bin" / f"{module}-{hashlib.sha256(pinned).hexdigest()[:12]}"
