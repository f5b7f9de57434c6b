"""Trust anchors and certificates of the upper cluster in lower pods, as a kubelet would write them."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest

from clusterset.model.policy.config import Policy
from clusterset.model.policy.rules import PolicySet
from tests.unit.virtual_node.translate.pods.pods import OPTIONS
from virtual_node.translate.pods import pod_certificates
from virtual_node.translate.pods.pod_certificates import Credential, Issue, Request, TrustSource

SIGNER = "example.com/mesh"
OPEN = replace(OPTIONS, policy=PolicySet(Policy()))


def pem(der: str, *, before: str = "", headers: str = "", kind: str = "CERTIFICATE") -> str:
    """Return a PEM block, with text before it and headers."""
    return f"{before}-----BEGIN {kind}-----\n{headers}{base64.b64encode(der.encode()).decode()}\n-----END {kind}-----\n"


def bundle(name: str, text: str, *, signer: str = "", **labels: str) -> dict[str, Any]:
    """Return a ClusterTrustBundle."""
    return {"metadata": {"name": name, "labels": labels}, "spec": {"signerName": signer, "trustBundle": text}}


def by_name(name: str, *, optional: bool = False) -> TrustSource:
    """Return a source that selects a bundle by its name."""
    return TrustSource("k", "v", name=name, optional=optional)


def by_signer(selector: Any, *, optional: bool = False) -> TrustSource:
    """Return a source that selects bundles of a signer."""
    return TrustSource("k", "v", signer=SIGNER, selector=selector, optional=optional)


BUNDLES = [
    bundle("plain", pem("a")),
    bundle("mesh:1", pem("b", before="subject: b\n"), signer=SIGNER, alive="true"),
    bundle("mesh:2", pem("c", headers="Proc: x\n\n") + pem("b"), signer=SIGNER, alive="false"),
    bundle("other:1", pem("d"), signer="example.com/other", alive="true"),
]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (by_name("plain"), {pem("a")}),
        (by_name("mesh:2"), {pem("b"), pem("c")}),
        (by_signer({}), {pem("b"), pem("c")}),
        (by_signer({"matchLabels": {"alive": "true"}}), {pem("b")}),
        (by_signer({"matchExpressions": [{"key": "alive", "operator": "In", "values": ["false"]}]}), {pem("b"), pem("c")}),
        (by_name("gone"), None),
        (by_signer(None), None),
        (by_signer({"matchLabels": {"alive": "no"}}), None),
        (by_name("gone", optional=True), set()),
        (by_signer(None, optional=True), set()),
    ],
)  # fmt: skip
def test_anchors_are_selected_and_normalised(source: TrustSource, expected: set[str] | None):
    """Each once, without headers and text; without a match an optional source is an empty file."""
    found = pod_certificates.anchors(source, BUNDLES)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert {
            f"{one}-----END CERTIFICATE-----\n" for one in found.split("-----END CERTIFICATE-----\n") if one
        } == expected
        assert found == pod_certificates.anchors(source, reversed(BUNDLES))


def test_a_chain_keeps_its_order():
    """The leaf is first."""
    assert pod_certificates.chain(pem("leaf", before="x\n") + pem("ca", headers="A: b\n\n")) == pem(
        "leaf"
    ) + pem("ca")


def test_long_certificates_have_lines_of_64_characters():
    """As Go writes PEM."""
    lines = pod_certificates.chain(pem("x" * 200)).splitlines()
    assert max(map(len, lines)) == 64
    assert len(lines) > 4


def upper_pod(*sources: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return an upper pod with these sources in one volume."""
    volumes = [{"name": "tls", "projected": {"sources": list(sources)}}]
    metadata = {"name": "web", "namespace": "shop", "uid": "12345678-aaaa"}
    return {"metadata": metadata, "spec": {"containers": [], "volumes": volumes, **spec}}


TRUST = {"clusterTrustBundle": {"name": "ca", "path": "ca.pem", "user": 7}}
CERTIFICATE = {
    "podCertificate": {
        "signerName": SIGNER,
        "keyType": "ED25519",
        "keyPath": "key",
        "certificateChainPath": "crt",
    }
}
BUNDLE = {"podCertificate": {"signerName": SIGNER, "keyType": "ED25519", "credentialBundlePath": "all"}}


def test_sources_become_items_of_one_secret():
    """Other sources and their order stay."""
    pod = upper_pod({"configMap": {"name": "c"}}, TRUST, CERTIFICATE, BUNDLE)
    spec = {"volumes": pod["spec"]["volumes"]}
    pod_certificates.with_upper_certificates(spec, pod, OPEN)
    sources = spec["volumes"][0]["projected"]["sources"]
    assert sources[0] == {"configMap": {"name": "c"}}
    assert {source["secret"]["name"] for source in sources[1:]} == {"web-certificates-12345678"}
    key = pod_certificates.sources_of(pod, OPEN).trust[0].key
    assert [source["secret"]["items"] for source in sources[1:]] == [
        [{"key": key, "path": "ca.pem", "user": 7}],
        [{"key": "certificate-0.key", "path": "key"}, {"key": "certificate-0.chain", "path": "crt"}],
        [{"key": "certificate-1.bundle", "path": "all"}],
    ]


def test_signers_of_the_policy_are_those_of_the_lower_cluster():
    """Their sources are copied as they are."""
    pod = upper_pod(CERTIFICATE)
    options = replace(OPEN, policy=PolicySet(Policy(pod_certificates=["example.com/*"])))
    spec = {"volumes": pod["spec"]["volumes"]}
    pod_certificates.with_upper_certificates(spec, pod, options)
    assert spec["volumes"] == pod["spec"]["volumes"]
    assert pod_certificates.sources_of(pod, options) == ([], [])


def test_equal_selections_of_anchors_are_stored_once():
    """A pod can have them in a hundred volumes."""
    pod = upper_pod(TRUST, {"clusterTrustBundle": {"name": "ca", "path": "other.pem"}})
    assert len(pod_certificates.sources_of(pod, OPEN).trust) == 1


def answered(kind: str, **status: Any) -> dict[str, Any]:
    """Return a PodCertificateRequest with a condition; empty: without one."""
    conditions = [{"type": kind, "status": "True", "reason": "R", "message": "m"}] if kind else []
    return {
        "metadata": {"namespace": "shop", "name": "req-1"},
        "status": {"conditions": conditions, **status},
    }


ISSUED = answered(
    "Issued",
    certificateChain=pem("leaf"),
    beginRefreshAt="1970-01-01T00:16:40Z",
    notAfter="1970-01-01T00:33:20Z",
)
HELD = Credential("KEY", "CHAIN", renew_at=1000.0, expires=3000.0)
PENDING = Request("req-1", "NEW", made_at=100.0)


@pytest.mark.parametrize(
    ("issue", "request_", "now", "must_request", "event"),
    [
        (Issue(), None, 0.0, True, ""),
        (Issue(request=PENDING), None, 200.0, False, ""),
        (Issue(request=PENDING), None, 701.0, True, ""),
        (Issue(request=PENDING), answered(""), 9999.0, False, ""),
        (Issue(request=PENDING), answered("Denied"), 200.0, False, "Denied"),
        (Issue(request=PENDING), answered("Failed"), 200.0, False, "Failed"),
        (Issue(request=PENDING), ISSUED, 200.0, False, ""),
        (Issue(refused="no"), None, 9999.0, False, ""),
        (Issue(HELD), None, 999.0, False, ""),
        (Issue(HELD), None, 1000.0, True, ""),
        (Issue(failed="no", retry_at=300.0), None, 299.0, False, ""),
        (Issue(failed="no", retry_at=300.0), None, 300.0, True, ""),
        (Issue(HELD, failed="no", retry_at=1100.0), None, 1099.0, False, ""),
        (Issue(HELD), None, 1700.0, True, "CertificateOverdueForRefresh"),
        (Issue(HELD, warned=frozenset({"CertificateOverdueForRefresh"})), None, 1700.0, True, ""),
        (Issue(HELD, request=PENDING), answered(""), 3001.0, False, "CertificateExpired"),
    ],
)
def test_the_next_step_of_a_certificate(
    issue: Issue, request_: Any, now: float, *, must_request: bool, event: str
):
    """The states of kubelet ``podcertificatemanager.go``."""
    step = pod_certificates.decide(issue, request_, now)
    assert (step.must_request, step.event[0]) == (must_request, event)


def test_an_issued_certificate_replaces_the_held_one():
    """With the key of its request."""
    step = pod_certificates.decide(Issue(HELD, request=PENDING), ISSUED, 200.0, jitter=5.0)
    assert step.issue == Issue(Credential("NEW", pem("leaf"), renew_at=1005.0, expires=2000.0))


def test_a_refused_renewal_keeps_the_credential():
    """The kubelet keeps the files, and does not ask again."""
    issue = pod_certificates.decide(Issue(HELD, request=PENDING), answered("Denied"), 200.0).issue
    assert issue.credential == HELD
    assert 'reason="R", message="m"' in issue.refused
    assert pod_certificates.pause(issue, 200.0) == 0


@pytest.mark.parametrize(
    ("issue", "expected"),
    [
        (Issue(), 0.0),
        (Issue(HELD), 800.0),
        (Issue(request=PENDING), 500.0),
        (Issue(HELD, request=PENDING), 500.0),
        (Issue(replace(HELD, renew_at=100.0)), 1.0),
        (Issue(request=replace(PENDING, made_at=-401.0)), 0.0),
        (Issue(HELD, request=replace(PENDING, made_at=-401.0)), 1400.0),
        (Issue(failed="no", retry_at=230.0), 30.0),
        (Issue(replace(HELD, renew_at=100.0), failed="no", retry_at=230.0), 30.0),
    ],
)
def test_the_pause_until_the_next_step(issue: Issue, expected: float):
    """At 200 s."""
    assert pod_certificates.pause(issue, 200.0) == expected


def test_requests_that_the_upper_cluster_refuses_are_repeated_ever_later():
    """Each costs a key, and many pods may use a ServiceAccount that is gone."""
    issue, pauses = Issue(HELD), []
    for _ in range(8):
        issue = pod_certificates.failed(issue, "no", 0.0)
        pauses.append(issue.retry_at)
    assert pauses == [10, 20, 40, 80, 160, 320, 600, 600]


def test_a_clock_that_is_ahead_does_not_renew_at_once():
    """Its certificates would be due when they are issued."""
    step = pod_certificates.decide(Issue(request=PENDING), ISSUED, 99_000.0)
    assert step.issue.credential is not None
    assert step.issue.credential.renew_at == 99_060.0


@pytest.mark.parametrize("time", ["1e999", "NaN", "null", '"x"', "[" * 100_000])
def test_times_that_are_none_count_as_no_credentials(time: str):
    """Users of the lower cluster can write them."""
    body = pod_certificates.body(
        {"name": "web", "uid": "12345678-aaaa"}, {}, {"certificate-0": HELD}, labels={}, namespace="shop"
    )
    times = f'{{"certificate-0": [{time}, {time}]}}'
    body["metadata"]["annotations"] = dict.fromkeys(body["metadata"]["annotations"], times)
    assert pod_certificates.held_credentials(body) == {}


def test_sources_of_every_kind_count_as_references():
    """Each selection of anchors costs time and room in the Secret, too."""
    assert pod_certificates.count(upper_pod(TRUST, CERTIFICATE, BUNDLE, {"configMap": {"name": "c"}})) == 3


def test_credentials_are_read_back_from_the_secret():
    """So a new process requests none again; a Secret that another client damaged counts as empty."""
    metadata = {"name": "web", "uid": "12345678-aaaa"}
    body = pod_certificates.body(
        metadata, {"trust-1": "x"}, {"certificate-0": HELD}, labels={}, namespace="shop"
    )
    assert pod_certificates.held_credentials(body) == {"certificate-0": HELD}
    assert pod_certificates.is_written({**body, "data": {**body["data"], "more": "x"}}, body)
    damaged = {**body, "data": {"certificate-0.key": "?"}}
    assert pod_certificates.held_credentials(damaged) == {}
    assert not pod_certificates.is_written(damaged, body)


def test_keys_are_not_in_representations():
    """Which logs and tracebacks show."""
    assert "KEY" not in repr(Issue(HELD, request=PENDING)).replace("KEYED", "")
    assert "NEW" not in repr(PENDING)
