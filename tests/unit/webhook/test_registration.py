"""Into which webhook configurations the CA is written, and when the webhook is ready."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from clusterset.model.names import ANNOTATION_WANTS_CA as WANTS_CA
from tests.fakes.apiserver.client import MemoryClient
from tests.fakes.apiserver.server import Server
from webhook import manifests
from webhook.certificates import ClientConfig, Registrar

OURS = base64.b64encode(b"ours").decode()
BOTH = base64.b64encode(b"ours and the previous one").decode()
USERS = base64.b64encode(b"the user's").decode()


KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")


class _Cluster:
    """An API server with one configuration of both kinds, or none."""

    def __init__(self, configuration: dict[str, Any] | None) -> None:
        self.server = Server()
        self.client: Any = MemoryClient(self.server)
        if configuration is not None:
            self.put(configuration)
        self.before = self.server.version

    def put(self, configuration: dict[str, Any]) -> None:
        for plural in KINDS:
            self.server.put(plural, configuration)

    @property
    def written(self) -> list[str]:
        """Return the CA bundles that were written."""
        return [
            webhook["clientConfig"].get("caBundle", "")
            for commit in self.server.changes_since(self.before)
            for webhook in commit.body["webhooks"]
        ]

    def registrar(self, *, client_config: ClientConfig | None = None) -> Registrar:
        return Registrar(self.client, name="vn", client_config=client_config)

    async def seen_by(self, registrar: Registrar) -> Registrar:
        """Fill the informers of the registrar with the configurations."""
        for informer in registrar.informers:
            listed = await self.client.list(informer.resource)
            await informer.replace(listed.items, listed.resource_version)
        return registrar


def _configuration_of_chart(annotations: dict[str, str], **client_config: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "vn", "annotations": annotations},
        "webhooks": [{"name": "pods.virtual-node.io", "clientConfig": {"url": "https://a", **client_config}}],
    }


@pytest.mark.parametrize("before", [{}, {"caBundle": USERS}])
async def test_writes_ca_into_configuration_that_requests_it(before):
    cluster = _Cluster(_configuration_of_chart({WANTS_CA: "true"}, **before))
    await cluster.registrar().announce(b"ours")
    assert cluster.written == [OURS, OURS], "one of each kind"


async def test_does_not_write_unchanged_ca():
    cluster = _Cluster(_configuration_of_chart({WANTS_CA: "true"}, caBundle=OURS))
    await cluster.registrar().announce(b"ours")
    assert cluster.written == []


@pytest.mark.parametrize("annotations", [{}, {WANTS_CA: "false"}, {"cert-manager.io/inject-ca-from": "a/b"}])
async def test_keeps_ca_of_configuration_that_does_not_request_it(annotations):
    """During a change to the user's certificate, an old replica must not write its CA back."""
    cluster = _Cluster(_configuration_of_chart(annotations, caBundle=USERS))
    await cluster.registrar().announce(b"ours")
    assert cluster.written == []


async def test_creates_no_configuration_without_register():
    cluster = _Cluster(None)
    await cluster.registrar().announce(b"ours")
    assert cluster.written == []


@pytest.mark.parametrize(
    ("configuration", "why"),
    [
        (_configuration_of_chart({WANTS_CA: "true"}), "does not have the webhook's CA yet"),
        (_configuration_of_chart({WANTS_CA: "true"}, caBundle=USERS), "does not have the webhook's CA yet"),
        (_configuration_of_chart({WANTS_CA: "true"}, caBundle=BOTH), None),
        (_configuration_of_chart({}, caBundle=USERS), None),
        (None, None),
    ],
)
async def test_is_ready_only_if_requesting_configurations_have_the_ca(configuration, why):
    """``helm install --wait`` then ends when pods can be created."""
    cluster = _Cluster(configuration)
    reason = (await cluster.seen_by(cluster.registrar())).why_untrusted(b"ours")
    assert reason is None if why is None else str(reason).endswith(why)


async def test_with_register_is_ready_after_writing_its_ca():
    cluster = _Cluster(None)
    registrar = cluster.registrar(client_config=lambda path, bundle: {"url": path, "caBundle": bundle})
    assert "has not been read" in str(registrar.why_untrusted(b"ours"))
    await cluster.seen_by(registrar)
    assert "has not been created" in str(registrar.why_untrusted(b"ours"))
    cluster.put(_configuration_of_chart({}, caBundle=USERS))
    await cluster.seen_by(registrar)
    assert "does not have the webhook's CA" in str(registrar.why_untrusted(b"ours"))
    cluster.put(_configuration_of_chart({}, caBundle=OURS))
    assert (await cluster.seen_by(registrar)).why_untrusted(b"ours") is None


_AKS = [
    {"key": "control-plane", "operator": "NotIn", "values": ["true"]},
    {"key": "kubernetes.azure.com/managedby", "operator": "NotIn", "values": ["aks"]},
]
"""Expressions that the admissions enforcer of AKS adds to the namespaceSelector of every webhook."""


def _registering(cluster: _Cluster) -> Registrar:
    return cluster.registrar(client_config=lambda path, bundle: manifests.by_url("https://a", path, bundle))


def _webhooks(cluster: _Cluster) -> list[dict[str, Any]]:
    return [dict(cluster.server.get(plural, "vn")["webhooks"][0]) for plural in KINDS]


@pytest.mark.parametrize("is_first", [False, True])
async def test_register_keeps_expressions_that_aks_adds(is_first):
    """AKS adds them again after each update, so removing them would never end."""
    cluster = _Cluster(None)
    registrar = _registering(cluster)
    await registrar.announce(b"ours")
    for plural, webhook in zip(KINDS, _webhooks(cluster), strict=True):
        ours = webhook["namespaceSelector"]["matchExpressions"]
        webhook["namespaceSelector"] = {"matchExpressions": [*_AKS, *ours] if is_first else [*ours, *_AKS]}
        cluster.server.put(plural, {"metadata": {"name": "vn"}, "webhooks": [webhook]})
    version = cluster.server.version
    await registrar.announce(b"ours")
    assert cluster.server.version == version
    await registrar.announce(b"new")
    for webhook in _webhooks(cluster):
        assert webhook["clientConfig"]["caBundle"] == base64.b64encode(b"new").decode()
        assert all(one in webhook["namespaceSelector"]["matchExpressions"] for one in _AKS)


async def test_register_restores_a_changed_selector():
    cluster = _Cluster(None)
    registrar = _registering(cluster)
    await registrar.announce(b"ours")
    wanted = _webhooks(cluster)
    for plural, webhook in zip(KINDS, wanted, strict=True):
        everywhere = {**webhook, "namespaceSelector": {}, "objectSelector": {}}
        cluster.server.put(plural, {"metadata": {"name": "vn"}, "webhooks": [everywhere]})
    await registrar.announce(b"ours")
    assert [one["namespaceSelector"] for one in _webhooks(cluster)] == [
        one["namespaceSelector"] for one in wanted
    ]
    assert _webhooks(cluster)[0]["objectSelector"] == wanted[0]["objectSelector"]


@pytest.mark.looptime
async def test_register_repairs_less_often_a_configuration_that_another_program_changes_each_time():
    cluster = _Cluster(None)
    registrar = _registering(cluster)
    await registrar.announce(b"ours")
    repairs = 0
    for _ in range(600):
        for plural, webhook in zip(KINDS, _webhooks(cluster), strict=True):
            cluster.server.put(
                plural, {"metadata": {"name": "vn"}, "webhooks": [{**webhook, "timeoutSeconds": 3}]}
            )
        await registrar.announce(b"ours")
        repairs += _webhooks(cluster)[0]["timeoutSeconds"] != 3
        await asyncio.sleep(1)
    assert 3 <= repairs <= 15
    webhook = _webhooks(cluster)[0]
    cluster.server.put(
        KINDS[0], {"metadata": {"name": "vn"}, "webhooks": [{**webhook, "clientConfig": {"url": "x"}}]}
    )
    await registrar.announce(b"ours")
    assert _webhooks(cluster)[0]["clientConfig"]["caBundle"] == OURS, "without its CA, no pod can be created"


def test_configurations_exclude_kube_system_and_unlabelled_pods():
    config = manifests.by_service("ns", "svc", "/mutate", b"ca")
    (pods,) = manifests.mutating(config)["webhooks"]
    (workloads,) = manifests.validating(config)["webhooks"]
    for webhook in (pods, workloads):
        (expression,) = webhook["namespaceSelector"]["matchExpressions"]
        assert (expression["operator"], expression["values"]) == ("NotIn", ["kube-system"])
        assert webhook["sideEffects"] == "None"
    assert pods["objectSelector"]["matchLabels"] == {"virtual-pod": "true"}
    assert (pods["failurePolicy"], workloads["failurePolicy"]) == ("Fail", "Ignore")
    assert manifests.by_url("https://h:1/", "/mutate", b"ca")["url"] == "https://h:1/mutate"
