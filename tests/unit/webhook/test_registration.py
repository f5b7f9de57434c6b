"""Whose CA is written into webhook configurations, and into which."""

from __future__ import annotations

import base64
from typing import Any, cast

import pytest

from controller_runtime.api.names import ANNOTATION_WANTS_CA as WANTS_CA
from controller_runtime.client.client import Client
from controller_runtime.errors import NotFound
from controller_runtime.objects import from_dict
from webhook.registration import ClientConfig, Registrar

OURS = base64.b64encode(b"ours").decode()
BOTH = base64.b64encode(b"ours and the one of before").decode()
USERS = base64.b64encode(b"the user's").decode()


class _Cluster:
    """One configuration of each kind, or none; keeps what is written."""

    def __init__(self, configuration: dict[str, Any] | None) -> None:
        self.configuration = configuration
        self.written: list[str] = []
        self.cluster = "upper"
        self.version = 0

    async def get(self, _resource: Any, name: str) -> dict[str, Any]:
        if self.configuration is None:
            raise NotFound(name)
        return self.configuration

    async def update(self, _resource: Any, body: dict[str, Any]) -> None:
        self.written += [one["clientConfig"].get("caBundle", "") for one in body["webhooks"]]

    def registrar(self, *, client_config: ClientConfig | None = None) -> Registrar:
        return Registrar(cast("Client", self), name="vn", client_config=client_config)

    async def seen_by(self, registrar: Registrar) -> Registrar:
        """As after the informers' lists."""
        self.version += 1
        objects = []
        if self.configuration is not None:
            self.configuration["metadata"]["resourceVersion"] = str(self.version)
            objects = [from_dict(self.configuration)]
        for informer in registrar.informers:
            await informer.replace(objects)
        return registrar


def _made_by_the_chart(annotations: dict[str, str], **client_config: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "vn", "annotations": annotations},
        "webhooks": [{"name": "pods.virtual-node.io", "clientConfig": {"url": "https://a", **client_config}}],
    }


@pytest.mark.parametrize("before", [{}, {"caBundle": USERS}])
async def test_our_ca_is_written_where_it_is_wanted(before):
    """With the chart's annotation the bundle is ours, whatever was there."""
    cluster = _Cluster(_made_by_the_chart({WANTS_CA: "true"}, **before))
    await cluster.registrar().announce(b"ours")
    assert cluster.written == [OURS, OURS], "one of each kind"


async def test_nothing_is_written_when_it_is_there_already():
    """No write without a difference: each one would be told to everybody who watches."""
    cluster = _Cluster(_made_by_the_chart({WANTS_CA: "true"}, caBundle=OURS))
    await cluster.registrar().announce(b"ours")
    assert cluster.written == []


@pytest.mark.parametrize("annotations", [{}, {WANTS_CA: "false"}, {"cert-manager.io/inject-ca-from": "a/b"}])
async def test_a_ca_that_came_with_the_users_certificate_stays(annotations):
    """During an upgrade to a certificate of the user's, a replica of before does not put its own CA back."""
    cluster = _Cluster(_made_by_the_chart(annotations, caBundle=USERS))
    await cluster.registrar().announce(b"ours")
    assert cluster.written == []


async def test_configurations_that_are_not_there_are_made_by_whoever_makes_them():
    """Without --register nothing is created."""
    cluster = _Cluster(None)
    await cluster.registrar().announce(b"ours")
    assert cluster.written == []


@pytest.mark.parametrize(
    ("configuration", "why"),
    [
        (_made_by_the_chart({WANTS_CA: "true"}), "does not have the webhook's CA yet"),
        (_made_by_the_chart({WANTS_CA: "true"}, caBundle=USERS), "does not have the webhook's CA yet"),
        (_made_by_the_chart({WANTS_CA: "true"}, caBundle=BOTH), None),
        (_made_by_the_chart({}, caBundle=USERS), None),
        (None, None),
    ],
)
async def test_a_webhook_that_the_api_server_does_not_trust_is_not_ready(configuration, why):
    """``helm install --wait`` ends when pods can be made; what is not ours to write is not waited for."""
    cluster = _Cluster(configuration)
    said = (await cluster.seen_by(cluster.registrar())).why_untrusted(b"ours")
    assert said is None if why is None else str(said).endswith(why)


async def test_a_webhook_that_registers_itself_is_ready_when_it_has():
    """Also where somebody else has written a CA."""
    cluster = _Cluster(None)
    registrar = cluster.registrar(client_config=lambda path, bundle: {"url": path, "caBundle": bundle})
    assert "has not been read" in str(registrar.why_untrusted(b"ours"))
    await cluster.seen_by(registrar)
    assert "has not been created" in str(registrar.why_untrusted(b"ours"))
    cluster.configuration = _made_by_the_chart({}, caBundle=USERS)
    await cluster.seen_by(registrar)
    assert "does not have the webhook's CA" in str(registrar.why_untrusted(b"ours"))
    cluster.configuration = _made_by_the_chart({}, caBundle=OURS)
    assert (await cluster.seen_by(registrar)).why_untrusted(b"ours") is None
