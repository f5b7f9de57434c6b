"""Reading: refusals are recorded, unreachable clusters skipped, and only compared fields kept."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from clusterset.config import Cluster
from clusterset.model.namespace_map import NamespaceConfig
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client.client import Client
from controller_runtime.errors import ConnectionFailed, Forbidden, NotFound
from controller_runtime.objects import Object, from_dict
from controller_runtime.resources import Resource
from tests.unit.virtual_node.commands.healthy_clusters import bodies, inspect
from virtual_node.commands import inspect as command
from virtual_node.config.types import Config
from virtual_node.examine import reading
from virtual_node.examine.clusters import FOREIGN_PODS, IDENTITY, SETTINGS, VERSION
from virtual_node.examine.expiry import ExpiryLimits
from virtual_node.translate import endpoints


class FakeClient:
    """A cluster of a few objects by plural, with refusals and outages."""

    def __init__(
        self, objects: dict[str, list[dict[str, Any]]], *, refuses: tuple[str, ...] = (), silent: bool = False
    ) -> None:
        self.config = ConnectionConfig("http://127.0.0.1:1")
        self.timeout = 1.0
        self.objects = objects
        self.refuses = refuses
        self.silent = silent
        self.asked: list[tuple[str, str | None, str | None, str | None]] = []

    async def version(self, *, timeout: float) -> dict[str, Any]:  # noqa: ASYNC109
        if self.silent:
            raise ConnectionFailed("nobody there")
        return {"gitVersion": "v1.34.1"}

    @contextlib.asynccontextmanager
    async def stream(self, method: str, path: str, *, head_timeout: float) -> AsyncIterator[SimpleNamespace]:
        yield SimpleNamespace(headers={"Date": "Thu, 01 Jan 2026 00:00:00 GMT"})

    async def list_as(
        self,
        resource: Resource,
        convert: Callable[[Object], Any],
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> tuple[list[Any], str]:
        self.asked.append((resource.plural, namespace, label_selector, field_selector))
        if resource.plural in self.refuses:
            raise Forbidden("no", code=403)
        foreign = bool(label_selector) and "!=" in str(label_selector)
        found = self.objects.get("foreign" if foreign else resource.plural, [])
        return [convert(from_dict(one)) for one in found], "1"

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> dict[str, Any]:
        if self.silent:
            raise ConnectionFailed("nobody there")
        if resource.plural in self.refuses:
            raise Forbidden("no", code=403)
        if name != "kube-system":
            raise NotFound("no", code=404)
        return {"metadata": {"name": name, "uid": "me"}}


UNSELECTED = {"nodes", "mutatingwebhookconfigurations", "validatingwebhookconfigurations"}
"""What is read of a lower cluster without a label selector."""
CONFIG = Config(
    clusters=[Cluster(name="paris", kubeconfig="p", node_name="vn", namespaces=NamespaceConfig(prefix="x-"))]
)


def opened(upper: FakeClient, lower: FakeClient, config: Config = CONFIG) -> reading.Opened:
    """Both clusters, as the command opens them."""
    clients = [(config.clusters[0], cast("Client", lower))]
    return reading.Opened(config, cast("Client", upper), clients, [])


async def test_only_objects_with_a_counterpart_are_read():
    """Pods of virtual nodes, and ConfigMaps and Secrets of namespaces that have copies; never all Secrets."""
    labels = {
        "virtual-node.io/upper-cluster": "me",
        "virtual-node.io/upper-uid": "u",
        "virtual-node.io/node": "vn-old",
    }
    metadata = {"name": "key", "namespace": "x-shop", "uid": "l", "labels": labels}
    secret = {"metadata": {**metadata, "annotations": {"virtual-node.io/upper-namespace": "shop"}}}
    upper, lower = (
        FakeClient({}),
        FakeClient({"secrets": [secret], "pods": [{"metadata": metadata, "spec": {}}]}),
    )
    facts = await reading.read(opened(upper, lower), ExpiryLimits())
    assert facts.upper[IDENTITY] == "me"
    read = {(plural, namespace, fields) for plural, namespace, _, fields in upper.asked}
    assert ("secrets", "shop", None) in read
    assert {one for one in read if one[0] in {"secrets", "configmaps"}} == {("secrets", "shop", None)}
    # In addition, pods of this project's components, by their label.
    assert [labels for plural, _, labels, fields in upper.asked if plural == "pods" and not fields] == [
        "app.kubernetes.io/name=virtual-node",
        "app.kubernetes.io/part-of=virtual-node,app.kubernetes.io/name!=virtual-node",
    ]
    assert {fields for plural, _, fields in read if plural == "pods" and fields} == {
        "spec.nodeName=,status.phase=Pending",
        "spec.nodeName=vn",
        "spec.nodeName=vn-old",
    }
    assert {plural for plural, _, selector, _ in lower.asked if not selector} == UNSELECTED
    assert facts.lowers[0][SETTINGS].nodes["vn"].options.namespace_map("shop") == "x-shop"


async def test_kinds_that_follow_pods_are_read_only_where_configured():
    """Our copies in the lower cluster, by their label, and all upper objects."""
    upper, lower = FakeClient({}), FakeClient({})
    cluster = msgspec.structs.replace(CONFIG.clusters[0], follow=["ingresses", "gateways"])
    facts = await reading.read(opened(upper, lower, Config(clusters=[cluster])), ExpiryLimits())
    followed = {"ingresses", "gateways", "httproutes"}
    assert {one for one in upper.asked if one[0] in followed} == {(one, None, None, None) for one in followed}
    assert {one[:3] for one in lower.asked if one[0] in followed} == {
        (one, None, "virtual-node.io/upper-cluster") for one in followed
    }
    assert facts.upper.knows("Ingress")
    assert not facts.upper.knows("NetworkPolicy")


async def test_only_requests_of_unmanaged_pods_are_kept():
    """A lower cluster may run many thousands of them, with confidential environments."""
    container = {
        "name": "c",
        "env": [{"name": "PASSWORD", "value": "x"}],
        "resources": {"requests": {"cpu": "1"}},
    }
    pod = {
        "metadata": {"name": "theirs", "namespace": "n", "uid": "f"},
        "spec": {"nodeName": "n1", "containers": [container]},
        "status": {"phase": "Running", "podIP": "1.2.3.4"},
    }
    facts = await reading.read(opened(FakeClient({}), FakeClient({"foreign": [pod]})), ExpiryLimits())
    (kept,) = bodies(facts.lowers[0], FOREIGN_PODS)
    assert kept["spec"] == {"nodeName": "n1", "containers": [{"resources": {"requests": {"cpu": "1"}}}]}
    assert kept["status"] == {"phase": "Running"}


@pytest.mark.parametrize("refused", ["secrets", "persistentvolumeclaims", "leases"])
async def test_refusals_are_reported_and_judge_nothing(refused):
    """A missing right is a warning; objects that could not be looked up are not leaks."""
    labels = {"virtual-node.io/upper-cluster": "me", "virtual-node.io/upper-uid": "u"}
    old = "2020-01-01T00:00:00Z"
    metadata = {"name": "one", "namespace": "x-shop", "uid": "l", "labels": labels, "creationTimestamp": old}
    below = {
        "secrets": [{"metadata": metadata}],
        "persistentvolumeclaims": [{"metadata": metadata, "spec": {}}],
    }
    below = {refused: below[refused]} if refused in below else {}
    facts = await reading.read(opened(FakeClient({}, refuses=(refused,)), FakeClient(below)), ExpiryLimits())
    found = inspect(facts)
    assert [one.kind.lower() + "s" for one in found if one.check == "unread"] == [refused]
    assert not [one for one in found if one.check == "leaked"]
    assert command.exit_code(facts, [one for one in found if one.check == "unread"], fail_on="error") == 0


async def test_rights_of_a_disabled_controller_are_not_required():
    """Without volumes a check for warnings passes without the right to list claims."""
    config = msgspec.structs.replace(CONFIG, enable_controllers=[])
    refuses = ("persistentvolumeclaims", "persistentvolumes", "endpointslices")
    clusters = opened(FakeClient({}, refuses=refuses), FakeClient({}, refuses=refuses), config)
    facts = await reading.read(clusters, ExpiryLimits())
    assert not [one for one in inspect(facts) if one.check == "unread"]
    assert not facts.upper.knows("PersistentVolumeClaim")


async def test_an_unreachable_lower_cluster_does_not_hide_the_upper_one():
    """It is recorded by name, without further requests."""
    lower = FakeClient({}, silent=True)
    facts = await reading.read(opened(FakeClient({}), lower), ExpiryLimits())
    assert facts.lowers[0].error == "http://127.0.0.1:1 (no kubeconfig): nobody there"
    assert lower.asked == []
    assert (facts.upper.error, facts.upper[VERSION]) == ("", "v1.34.1")
    assert command.exit_code(facts, [], fail_on="never") == command.INCOMPLETE


async def test_with_an_unreachable_upper_cluster_lower_nodes_are_read():
    """Ownership of other objects is unknown, so they are not read."""
    lower = FakeClient({"nodes": [{"metadata": {"name": "n1", "uid": "n"}, "spec": {"unschedulable": True}}]})
    facts = await reading.read(opened(FakeClient({}, silent=True), lower), ExpiryLimits())
    assert facts.upper.error == "http://127.0.0.1:1 (no kubeconfig): nobody there"
    assert {plural for plural, *_ in lower.asked} == {*UNSELECTED, "services"}
    assert [(one.check, one.object) for one in inspect(facts) if one.cluster == "paris"] == [
        ("clock", "paris"), ("capacity", "n1"),
    ]  # fmt: skip


async def test_an_upper_cluster_with_a_hidden_identity():
    """Without the right to get kube-system the command reports so and continues."""
    facts = await reading.read(
        opened(FakeClient({}, refuses=("namespaces",)), FakeClient({})), ExpiryLimits()
    )
    assert (facts.upper[IDENTITY], facts.upper.error) == ("", "")
    assert {one.object for one in inspect(facts) if one.check == "unread"} == {
        "*",
        "kube-system",
    }


async def test_missing_optional_rights_are_named():
    """A virtual node's own account may not list workloads and webhooks; this is information, and nothing is guessed."""
    refuses = ("deployments", "poddisruptionbudgets", "mutatingwebhookconfigurations")
    facts = await reading.read(
        opened(FakeClient({}, refuses=refuses), FakeClient({}, refuses=("mutatingwebhookconfigurations",))),
        ExpiryLimits(),
    )
    found = [one for one in inspect(facts) if one.check == "unread"]
    assert [(one.severity, one.cluster) for one in found] == [("info", "upper"), ("info", "paris")]
    assert found[0].message.endswith(
        "rights: list deployments.apps, list poddisruptionbudgets.policy, "
        "list mutatingwebhookconfigurations.admissionregistration.k8s.io"
    )


@pytest.mark.parametrize("refused", [False, True])
async def test_endpoints_are_read_only_of_services_that_must_work(refused: bool):  # noqa: FBT001 - a case
    """DNS and webhooks of the lower cluster; without the right nothing is reported about them."""
    dns = {"metadata": {"name": "kube-dns", "namespace": "kube-system", "uid": "d"}}
    webhook = {"name": "w", "clientConfig": {"service": {"namespace": "other", "name": "hook"}}}
    configuration = {"metadata": {"name": "c", "uid": "c"}, "webhooks": [webhook]}
    below: dict[str, list[dict[str, Any]]] = {
        "services": [dns],
        "mutatingwebhookconfigurations": [configuration],
    }
    lower = FakeClient(below, refuses=("endpointslices",) if refused else ())
    facts = await reading.read(opened(FakeClient({}), lower), ExpiryLimits())
    asked = {
        (namespace, labels) for plural, namespace, labels, _ in lower.asked if plural == "endpointslices"
    }
    assert asked - {(None, "virtual-node.io/upper-cluster"), (None, endpoints.SELECTOR)} == {
        ("kube-system", "kubernetes.io/service-name=kube-dns"),
        ("other", "kubernetes.io/service-name=hook"),
    }
    found = {one.check for one in inspect(facts) if one.cluster == "paris"}
    assert found & {"dns", "webhook"} == (set() if refused else {"dns", "webhook"})


@pytest.mark.parametrize(
    "objects",
    [
        {"nodes": [{"metadata": {"name": "n1", "uid": "n"}, "status": "x"}]},
        {"pods": [{"metadata": {"name": "p", "namespace": "x", "uid": "p"}, "spec": "x"}]},
        {"mutatingwebhookconfigurations": [{"metadata": {"name": "c", "uid": "c"}, "webhooks": [{}]}]},
        {
            "mutatingwebhookconfigurations": [
                {"metadata": {"name": "c", "uid": "c"}, "webhooks": [{"clientConfig": {"caBundle": 1}}]}
            ]
        },
    ],
)
async def test_a_malformed_object_concerns_only_its_cluster(objects: dict[str, list[dict[str, Any]]]):
    """The cluster counts as unread, and the others are read."""
    facts = await reading.read(opened(FakeClient({}), FakeClient(objects)), ExpiryLimits())
    assert facts.lowers[0].error.startswith("it sent a malformed object: ")
    assert (facts.upper.error, facts.lowers[0].knows("Node")) == ("", False)
    assert not [one for one in inspect(facts) if one.check == "rule"]


async def test_impossible_names_are_not_asked_for():
    """A lower cluster cannot make upper objects unread, or the upper cluster fail, by labels and annotations."""
    labels = {
        "virtual-node.io/upper-cluster": "me",
        "virtual-node.io/upper-uid": "u",
        "virtual-node.io/node": "vn,a=b",
    }
    above = {"virtual-node.io/upper-namespace": "a/b"}
    secret = {
        "metadata": {"name": "key", "namespace": "x", "uid": "l", "labels": labels, "annotations": above}
    }
    nowhere = {"metadata": {"name": "key", "uid": "m", "labels": labels}}
    pod = {"metadata": {"name": "p", "namespace": "x", "uid": "p", "labels": labels}, "spec": {}}
    upper, lower = FakeClient({}), FakeClient({"secrets": [secret, nowhere], "pods": [pod]})
    facts = await reading.read(opened(upper, lower), ExpiryLimits())
    assert (facts.upper.error, facts.upper.unread, len(bodies(facts.upper, "Secret"))) == ("", {}, 0)
    assert not [one for one in upper.asked if one[0] == "secrets"]
    assert "spec.nodeName=vn,a=b" not in {fields for *_, fields in upper.asked}
