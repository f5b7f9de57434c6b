"""Tokens for a lower cluster are renewed in their Secrets, before they expire."""

from __future__ import annotations

import asyncio
import base64
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog
from prometheus_client import REGISTRY

from clusterset.config import Cluster, TokenSecret
from controller_runtime.errors import ConfigError, Forbidden, NotFound, Unauthorized
from tests.unit.clusterset.model.test_token_life import HOUR, START, token
from virtual_node.cluster.credential_renewal import CredentialRenewal, kube_system
from virtual_node.controllers.base.context import ClusterContext

SECRET = TokenSecret(namespace="ns", name="virtual-node-tokyo")
NOW = datetime.fromtimestamp(START, UTC)


class _Clusters:
    """One Secret in the upper cluster, and a lower cluster that issues tokens."""

    def __init__(self, data: dict[str, str] | None) -> None:
        self.data = data
        self.asked: list[tuple[str, str, int]] = []
        self.patched: list[dict[str, Any]] = []
        self.refuses = False
        self.fresh: Any = token(iat=START + 100 * HOUR, exp=START + 110 * HOUR)

    async def get(self, _resource: object, name: str, **_: object) -> dict[str, Any]:
        if name == "kube-system":
            raise Unauthorized("Unauthorized", code=401)
        if self.data is None:
            raise NotFound(name, code=404)
        return {"metadata": {"uid": "u"}, "data": self.data}

    async def create(
        self, _resource: object, body: dict[str, Any], *, namespace: str, name: str, subresource: str
    ) -> dict[str, Any]:
        assert subresource == "token"
        self.asked.append((namespace, name, body["spec"]["expirationSeconds"]))
        if self.refuses:
            raise Forbidden("no", code=403)
        return {"status": {"token": self.fresh, "expirationTimestamp": "2027-01-01T00:00:00Z"}}

    async def patch(self, _resource: object, _name: str, patch: dict[str, Any], **_: object) -> None:
        self.patched.append(patch)
        assert self.data is not None
        self.data = {**self.data, **patch["data"]}

    @property
    def context(self) -> ClusterContext:
        config = Cluster(name="tokyo", token_secrets=[SECRET])
        log = structlog.get_logger()
        return cast(
            "ClusterContext", SimpleNamespace(name="tokyo", upper=self, lower=self, config=config, log=log)
        )


def _with(text: str) -> _Clusters:
    return _Clusters({"kubeconfig": "x", "token": base64.b64encode(text.encode()).decode()})


def _renewal(clusters: _Clusters, *, hours: float) -> CredentialRenewal:
    return CredentialRenewal(clusters.context, [SECRET], now=lambda: NOW + timedelta(hours=hours))


async def test_renews_a_due_token_with_the_same_lifetime():
    """For the account of the token; the kubeconfig in the Secret is not changed."""
    clusters = _with(token(exp=START + 10 * HOUR))
    await _renewal(clusters, hours=8.1).renew(SECRET)
    assert clusters.asked == [("ns", "vn", 10 * HOUR)]
    assert clusters.patched[0]["metadata"]["uid"] == "u", "that very Secret"
    assert clusters.data is not None
    assert clusters.data["kubeconfig"] == "x"
    assert b"signature" in base64.b64decode(clusters.data["token"])
    await _renewal(clusters, hours=100.1).renew(SECRET)
    assert len(clusters.asked) == 1, "the new one is not due"


async def test_waits_for_a_token_that_is_not_due():
    """At most an hour, because a register may replace it."""
    clusters = _with(token(exp=START + 10 * HOUR))
    assert await _renewal(clusters, hours=7.5).renew(SECRET) == pytest.approx(HOUR / 2)
    assert await _renewal(clusters, hours=1).renew(SECRET) == HOUR
    assert clusters.asked == []


@pytest.mark.parametrize("data", [None, {}, {"kubeconfig": "x"}, {"token": "é"}, {"token": "b3BhcXVl"}])
async def test_leaves_other_secrets_alone(data):
    """A missing one, one that a user made, a legacy token."""
    for clusters in (_Clusters(data), _with(token())):
        await _renewal(clusters, hours=1e5).renew(SECRET)
        assert (clusters.asked, clusters.patched) == ([], [])


@pytest.mark.looptime
@pytest.mark.parametrize(
    "fresh",
    [
        None,
        ["x"],
        "",
        "opaque",
        token(exp=START + 110 * HOUR) + "\nX-Forged: 1",
        token(exp=START + 110 * HOUR, sub="system:serviceaccount:kube-system:other"),
        token(),
        token(exp=START + 110 * HOUR, padding="x" * 20_000),
    ],
)
async def test_an_answer_without_a_usable_token_is_not_stored(fresh):
    """All programs read the Secret, and this process reads the token again at each start."""
    clusters = _with(token(exp=START + 10 * HOUR))
    clusters.fresh = fresh
    task = asyncio.create_task(_renewal(clusters, hours=8.1).run())
    await asyncio.sleep(90)
    assert not task.done()
    assert (len(clusters.asked), clusters.patched) == (2, [])
    task.cancel()


@pytest.mark.looptime
async def test_a_refusal_is_retried():
    clusters = _with(token(exp=START + HOUR))
    clusters.refuses = True
    task = asyncio.create_task(_renewal(clusters, hours=0.9).run())
    await asyncio.sleep(150)
    assert not task.done()
    assert len(clusters.asked) == 3
    clusters.refuses = False
    await asyncio.sleep(60)
    assert len(clusters.patched) == 1
    task.cancel()


def _sample(name: str) -> float | None:
    labels = {"cluster": "tokyo", "secret": "ns/virtual-node-tokyo"}
    return REGISTRY.get_sample_value(f"virtual_node_token_{name}", labels)


@pytest.mark.looptime
async def test_failed_renewals_are_counted_and_times_of_the_token_stay():
    """The alert compares the time of renewal with now; after a renewal both times are those of the new token."""
    clusters = _with(token(exp=START + HOUR))
    clusters.refuses = True
    before = _sample("renewal_errors_total") or 0.0
    task = asyncio.create_task(_renewal(clusters, hours=0.9).run())
    await asyncio.sleep(150)
    assert _sample("renewal_errors_total") == before + 3
    assert _sample("expiration_timestamp_seconds") == START + HOUR
    assert _sample("renewal_timestamp_seconds") == START + 0.8 * HOUR
    clusters.refuses = False
    await asyncio.sleep(150)
    assert _sample("expiration_timestamp_seconds") == START + 110 * HOUR
    assert _sample("renewal_timestamp_seconds") == START + 108 * HOUR
    task.cancel()


@pytest.mark.parametrize("data", [None, {"kubeconfig": "x"}])
async def test_a_secret_without_a_renewable_token_has_no_times(data):
    """A user may have replaced it, and alerts of the former token must end."""
    await _renewal(_with(token(exp=START + HOUR)), hours=0.1).renew(SECRET)
    assert _sample("expiration_timestamp_seconds") == START + HOUR
    await _renewal(_Clusters(data), hours=0.1).renew(SECRET)
    assert _sample("expiration_timestamp_seconds") is None
    assert _sample("renewal_timestamp_seconds") is None


async def test_refused_credentials_name_the_command():
    """The token may have expired while nothing ran."""
    with pytest.raises(ConfigError, match=r"lower-cluster register tokyo .* --namespace ns"):
        await kube_system(_with("x").context)
