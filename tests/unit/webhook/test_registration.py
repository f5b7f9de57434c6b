"""Into which webhook configurations the CA is written, and when the webhook is ready."""

from __future__ import annotations

import base64
from typing import Any, cast

import pytest

from clusterset.model.names import ANNOTATION_WANTS_CA as WANTS_CA
from controller_runtime.client.client import Client
from controller_runtime.client.limits import CacheBudget
from controller_runtime.errors import NotFound
from controller_runtime.objects import from_dict
from webhook import manifests
from webhook.certificates import ClientConfig, Registrar

OURS = base64.b64encode(b"ours").decode()
BOTH = base64.b64encode(b"ours and the previous one").decode()
USERS = base64.b64encode(b"the user's").decode()


class _Cluster:
    """One configuration for both kinds, or none; keeps the written CA bundles."""

    caches = CacheBudget(0, cluster="upper")

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
        self.written += [webhook["clientConfig"].get("caBundle", "") for webhook in body["webhooks"]]

    def registrar(self, *, client_config: ClientConfig | None = None) -> Registrar:
        return Registrar(cast("Client", self), name="vn", client_config=client_config)

    async def seen_by(self, registrar: Registrar) -> Registrar:
        """Fill the informers of the registrar with the configuration."""
        self.version += 1
        objects = []
        if self.configuration is not None:
            self.configuration["metadata"]["resourceVersion"] = str(self.version)
            objects = [from_dict(self.configuration)]
        for informer in registrar.informers:
            await informer.replace(objects, "1")
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
    cluster.configuration = _configuration_of_chart({}, caBundle=USERS)
    await cluster.seen_by(registrar)
    assert "does not have the webhook's CA" in str(registrar.why_untrusted(b"ours"))
    cluster.configuration = _configuration_of_chart({}, caBundle=OURS)
    assert (await cluster.seen_by(registrar)).why_untrusted(b"ours") is None


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
