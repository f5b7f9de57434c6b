"""Which API server a lower pod gets, and under which addresses and names."""

from __future__ import annotations

from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.pod.api_access import requested
from virtual_node.translate.pods import api_server
from virtual_node.translate.pods.api_server import MISMATCH, NOT_USABLE, Endpoint

NAMES = ["kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "kubernetes.default"]
GOOD = Endpoint("10.0.0.1", 6443, ips=["10.0.0.1"])
BAD = Endpoint("", 0, problem="no route: do this")


def _pod(choice: str = "", *, audience: str | None = "") -> dict[str, Any]:
    """Return a pod with an annotation, and a token for an audience; None: without a token."""
    source = {"serviceAccountToken": {"path": "token", "audience": audience}}
    volumes = [] if audience is None else [{"name": "v", "projected": {"sources": [source]}}]
    annotations = {names.ANNOTATION_KUBERNETES_SERVICE: choice} if choice else {}
    return {"metadata": {"annotations": annotations}, "spec": {"volumes": volumes}}


@pytest.mark.parametrize(
    ("pod", "setting", "identities", "endpoint", "is_upper", "reason"),
    [
        (_pod(), "Auto", True, GOOD, True, ""),
        (_pod(), "Auto", False, GOOD, False, ""),
        (_pod(), "Auto", True, BAD, False, NOT_USABLE),
        (_pod(audience=None), "Auto", True, BAD, False, ""),
        (_pod(audience="vault"), "Auto", True, BAD, False, ""),
        (_pod(), "Lower", True, GOOD, False, MISMATCH),
        (_pod(audience=None), "Lower", True, GOOD, False, ""),
        (_pod(), "Lower", False, GOOD, False, ""),
        (_pod(), "Upper", True, GOOD, True, ""),
        (_pod(), "Upper", False, GOOD, True, ""),
        (_pod("lower"), "Auto", True, GOOD, False, MISMATCH),
        (_pod("LOWER"), "Upper", True, GOOD, False, MISMATCH),
        (_pod("lower"), "Upper", False, GOOD, False, ""),
        (_pod("Upper"), "Lower", True, GOOD, True, ""),
        (_pod("auto"), "Lower", True, GOOD, True, ""),
        (_pod("uper"), "Auto", True, GOOD, True, ""),
        (_pod("uper"), "Lower", True, GOOD, False, MISMATCH),
    ],
)
def test_a_pod_gets_the_api_server_of_the_cluster_that_issued_its_token(
    pod: dict[str, Any], setting: Any, *, identities: bool, endpoint: Endpoint, is_upper: bool, reason: str
):
    """Except if a setting names another API server, which is reported if the pod has a token of the upper cluster."""
    found = api_server.assignment(pod, setting=setting, identities=identities, endpoint=endpoint)
    assert (found.upper is not None, found.reason, bool(found.problem)) == (is_upper, reason, bool(reason))


def test_a_wrong_value_of_the_annotation_is_an_error_that_names_it():
    """Values are accepted in any case."""
    key = names.ANNOTATION_KUBERNETES_SERVICE
    assert [requested({key: text}) for text in ("", "upper", "Lower", "AUTO")] == [
        None,
        "Upper",
        "Lower",
        "Auto",
    ]
    with pytest.raises(ValueError, match=f"{key}: 'uper': write upper, lower or auto"):
        requested({key: "uper"})


@pytest.mark.parametrize(
    ("endpoint", "aliases", "master"),
    [
        (GOOD, {"10.0.0.1": NAMES}, ("10.0.0.1", 6443)),
        (Endpoint("10.0.0.1", 6443, ["10.0.0.1"], "10.97.0.9"), {"10.97.0.9": NAMES}, ("10.0.0.1", 6443)),
        (Endpoint("api.example.com", 443, ["1.2.3.4"]), {"1.2.3.4": NAMES}, ("api.example.com", 443)),
        (Endpoint("api.example.com", 443), {}, ("api.example.com", 443)),
        (Endpoint("cp", 6443, ["1.2.3.4"], "9.9.9.9"), {"9.9.9.9": NAMES, "1.2.3.4": ["cp"]}, ("cp", 6443)),
        (Endpoint("h.io", 6443, ["1.2.3.4"], "9.9.9.9", uses_name=True), {"9.9.9.9": NAMES}, (NAMES[0], 443)),
        (Endpoint("h.io", 6443, ["1.2.3.4"], uses_name=True), {"1.2.3.4": NAMES}, (NAMES[0], 6443)),
        (Endpoint("fd00::1", 443, ["fd00::1"]), {"fd00::1": NAMES}, ("fd00::1", 443)),
    ],
)
def test_names_and_variables_lead_to_the_same_server(
    endpoint: Endpoint, aliases: dict[str, list[str]], master: tuple[str, int]
):
    """A Service provides port 443. A host without a domain is known only where the virtual node runs."""
    spec: dict[str, Any] = {}
    api_server.with_host_aliases(spec, endpoint, "shop", domain="cluster.local")
    assert {one["ip"]: one["hostnames"] for one in spec.get("hostAliases") or ()} == aliases
    assert endpoint.master == master


def test_host_aliases_of_the_pod_are_kept():
    """Its own names win, and only in namespace default is ``kubernetes`` the API server."""
    own = {"ip": "1.1.1.1", "hostnames": ["kubernetes.default.svc", "db"]}
    spec: dict[str, Any] = {"hostAliases": [own]}
    api_server.with_host_aliases(spec, GOOD, "default", domain="cluster.local")
    assert spec["hostAliases"] == [own, {"ip": "10.0.0.1", "hostnames": [*NAMES[1:], "kubernetes"]}]


@pytest.mark.parametrize(
    ("domain", "qualified"), [("app.pre", ["kubernetes.default.svc.app.pre"]), ("", []), ("a b", [])]
)
def test_the_full_name_has_the_domain_of_the_upper_cluster(domain: str, qualified: list[str]):
    """A domain that is no DNS name, which tensile-kube's flag accepts, would make the lower pod invalid."""
    spec: dict[str, Any] = {}
    api_server.with_host_aliases(spec, GOOD, "shop", domain=domain)
    assert spec["hostAliases"][0]["hostnames"] == ["kubernetes.default.svc", *qualified, "kubernetes.default"]


@pytest.mark.parametrize(
    ("host", "is_internal"),
    [
        *((host, True) for host in (*NAMES, "kubernetes", "kubernetes.default.svc.app.pre", "10.96.0.1")),
        *((host, False) for host in ("api.example.com", "10.0.0.1", "kubernetes.example.com")),
    ],
)
def test_names_of_the_upper_service_are_recognized_in_every_domain(host: str, *, is_internal: bool):
    """In a lower cluster they lead elsewhere."""
    assert api_server.is_cluster_internal(host, ["10.96.0.1"]) is is_internal


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        *((host, True) for host in ("localhost", "a.localhost", "127.0.0.1", "::1", "0.0.0.0", "169.254.1.1", "fe80::1")),
        *((host, False) for host in ("10.0.0.1", "api.example.com", "fd00::1", "localhost.example.com")),
        ("::ffff:127.0.0.1", True),
    ],
)  # fmt: skip
def test_addresses_of_one_machine_are_recognized(host: str, *, is_local: bool):
    """From a pod they lead to the pod itself."""
    assert api_server.is_local(host) is is_local


@pytest.mark.parametrize(
    ("endpoint", "needs"),
    [
        (Endpoint("10.0.0.1", 443, ["10.0.0.1"]), False),
        (GOOD, True),
        (Endpoint("api.example.com", 443, ["1.2.3.4"]), True),
        (Endpoint("api.example.com", 443), False),
    ],
)
def test_a_service_is_needed_for_another_port_or_a_name(endpoint: Endpoint, *, needs: bool):
    """Addresses of a name may change while pods run."""
    assert endpoint.needs_service is needs
