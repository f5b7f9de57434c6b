"""Reading an installation over a real connection: requests, and the effect of refusals."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web

from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError
from tests.unit.controller_runtime.loopback import Server, failure, reply, serve
from tests.unit.virtual_node.commands.doctor_facts import configuration, node, pod
from tests.unit.virtual_node.examine.health_objects import NOW
from virtual_node.examine.clusters import VERSION
from virtual_node.examine.components import process_trouble
from virtual_node.examine.facts import (
    BOUND,
    DENIED,
    DESCHEDULERS,
    INSTALLED,
    KUBELETS,
    LEASES,
    NAMES,
    NODES,
    SCHEDULERS,
    WEBHOOK,
    Probe,
)
from virtual_node.examine.facts import EVENTS as POD_EVENTS
from virtual_node.examine.finding import UPPER
from virtual_node.examine.leases import active_lease
from virtual_node.examine.path_reading import UPPER_FACTS, read_lower, read_upper, webhook_test_pod
from virtual_node.examine.snapshot import Snapshot, View

CORE = "/api/v1"
ALL_LEASES = "/apis/coordination.k8s.io/v1/leases"
EVENTS = f"{CORE}/events"
HEALTHZ = f"{CORE}/nodes/vn/proxy/healthz"
LOG = f"{CORE}/namespaces/shop/pods/web/log"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
TRIAL = f"{CORE}/namespaces/shop/pods"
Answer = Callable[[web.Request], web.StreamResponse]


def _vn() -> dict[str, Any]:
    found = node()
    found["status"]["addresses"] = [{"type": "InternalIP", "address": "127.0.0.1"}]
    found["status"]["daemonEndpoints"] = {"kubeletEndpoint": {"Port": 10250}}
    return found


def _listed(*items: dict[str, Any]) -> Answer:
    return lambda _request: reply({"kind": "List", "metadata": {}, "items": list(items)})


def _running() -> dict[str, Any]:
    found = pod(nodeName="vn", containers=[{"name": "c", "resources": {"requests": {"cpu": "2"}}}])
    found["status"] = {"phase": "Running"}
    return found


def _pods(request: web.Request) -> web.StreamResponse:
    """Return the pods that the selectors match."""
    selected = request.query.get("fieldSelector", "")
    items = [_running()] if selected == "spec.nodeName=vn" else []
    return _listed(*items)(request)


ANSWERS: dict[str, Answer] = {
    "/version": lambda _request: reply({"gitVersion": "v1.34.1"}, Date="Thu, 01 Jan 2026 00:00:00 GMT"),
    f"{CORE}/nodes": _listed(_vn(), node("real", virtual=False)),
    f"{CORE}/pods": _pods,
    EVENTS: _listed(
        {"metadata": {"name": "b"}, "lastTimestamp": "2026-01-01T00:00:02Z"},
        {"metadata": {"name": "a"}, "eventTime": "2026-01-01T00:00:01.000000Z"},
    ),
    REVIEWS: lambda _request: reply({"status": {"allowed": True}}),
    HEALTHZ: lambda _request: web.Response(text="ok"),
    "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases": _listed({"metadata": {"name": "vn"}}),
    ALL_LEASES: _listed(),
    "/apis/apps/v1/deployments": _listed(),
    WEBHOOKS: _listed(),
}


async def _look(**answers: Answer) -> tuple[Snapshot, Server]:
    table = {**ANSWERS, **answers}

    async def script(request: web.Request) -> web.StreamResponse:
        answer = table.get(request.path)
        return answer(request) if answer else failure(404, "NotFound", "no such thing")

    async with serve(script) as server, Client(ConnectionConfig(server.url)) as client:
        return await _read(client), server


async def _read(client: Client) -> Snapshot:
    view = View(UPPER)
    now = await read_upper(client, view, UPPER_FACTS, namespace="shop")
    return Snapshot(now, upper=view)


async def test_everything_is_read_once():
    """Nodes, leases, pods, events and Leases, by the server's clock; pods of virtual nodes are counted."""
    facts, server = await _look()
    assert facts.now == datetime(2026, 1, 1, tzinfo=UTC)
    assert (facts.upper[VERSION], facts.upper[DENIED], facts.upper.unread) == ("v1.34.1", [], {})
    assert len(facts.upper[NODES]) == 1
    assert facts.upper[LEASES].keys() == {"vn"}
    assert [one["metadata"]["name"] for one in facts.upper[BOUND]] == ["web"]
    assert facts.upper[KUBELETS]["vn"].ok
    assert [event["metadata"]["name"] for event in facts.upper[POD_EVENTS]] == ["a", "b"]
    assert (facts.upper[SCHEDULERS], facts.upper[DESCHEDULERS], facts.upper[WEBHOOK].dry_run) == (
        [],
        [],
        None,
    )
    assert {asked.method for asked in server.asked if asked.path != REVIEWS} == {"GET"}


async def test_missing_rights_are_named():
    """As RBAC spells them, with their namespace; `nodes/proxy` is requested for the virtual nodes only."""

    def review(request: web.Request) -> web.StreamResponse:
        return reply({"status": {"allowed": False}})

    facts, server = await _look(**{REVIEWS: review})
    assert {"list nodes", "get nodes/vn/proxy", "create pods in shop"} <= set(facts.upper[DENIED])
    asked = [one.json["spec"]["resourceAttributes"] for one in server.asked if one.path == REVIEWS]
    assert {"nodes/vn/proxy", "pods//log"} <= {
        f"{one['resource']}/{one['name']}/{one['subresource']}" for one in asked
    }


async def test_a_forbidden_list_costs_one_fact():
    """The rest is read."""
    facts, _ = await _look(**{EVENTS: lambda _request: failure(403, "Forbidden", "events is forbidden")})
    assert facts.upper.unread == {POD_EVENTS: "events is forbidden (403 Forbidden)"}
    assert len(facts.upper[NODES]) == 1


async def test_refused_credentials_end_the_reading():
    async def refuse(_request: web.Request) -> web.StreamResponse:
        return failure(401, "Unauthorized", "Unauthorized")

    async with serve(refuse) as server, Client(ConnectionConfig(server.url)) as client:
        with pytest.raises(ApiError, match="Unauthorized"):
            await _read(client)
    assert {asked.path for asked in server.asked} == {"/version"}


async def test_a_failing_credential_plugin_is_one_plain_error(monkeypatch: pytest.MonkeyPatch):
    """The commands print a ConfigError as one line; an ExceptionGroup would be a traceback."""

    async def refuse(*_given: object) -> None:
        raise ConfigError("the exec plugin failed")

    monkeypatch.setattr("virtual_node.examine.path_reading.labelled", refuse)
    with pytest.raises(ConfigError, match="the exec plugin failed"):
        await _look()


async def test_an_unreachable_apiserver_is_an_error_with_its_address():
    async with Client(ConnectionConfig("http://127.0.0.1:1")) as client:
        for reading in (_read(client), read_lower(client, View("a.yaml"))):
            with pytest.raises(ApiError, match=r"127\.0\.0\.1:1"):
                await reading


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (web.Response, 200),
        # A response from behind the virtual node shows that the request got through.
        (lambda: failure(500, "InternalError", "dial tcp 10.9.9.9:10250: connection refused"), 200),
        (lambda: failure(500, "InternalError", "dial tcp 127.0.0.1:10250: connection refused"), 500),
        (lambda: failure(403, "Forbidden", "Forbidden (user=x)"), 403),
    ],
)
async def test_a_log_is_read_where_proxying_is_impossible(answer: Callable[[], web.Response], code: int):
    """The API server proxies to no loopback address, but reads logs from it."""
    facts, server = await _look(
        **{
            HEALTHZ: lambda _request: failure(400, "BadRequest", "address not allowed"),
            LOG: lambda _request: answer(),
        }
    )
    assert facts.upper[KUBELETS]["vn"].code == code
    assert [asked.query["container"] for asked in server.asked if asked.path == LOG] == ["c"]


async def test_the_log_of_a_crashed_container_is_read():
    """That of the previous container, while the next one waits for its start."""
    mine = pod("vn", labels={"app.kubernetes.io/name": "virtual-node"})
    mine["status"] = {
        "containerStatuses": [{"name": "c", "lastState": {"terminated": {"exitCode": 1}}, "state": {}}]
    }

    def pods(request: web.Request) -> web.StreamResponse:
        wanted = request.query.get("labelSelector") == "app.kubernetes.io/name=virtual-node"
        return _listed(*([mine] if wanted else []))(request)

    log = f"{CORE}/namespaces/shop/pods/vn/log"
    facts, server = await _look(
        **{f"{CORE}/pods": pods, log: lambda _request: web.Response(text="one\ntwo\n")}
    )
    assert facts.upper[INSTALLED].logs == {"shop/vn": ["one", "two"]}
    assert [one.query for one in server.asked if one.path == log] == [
        {"container": "c", "tailLines": "5", "previous": "true"}
    ]
    facts, _ = await _look(**{f"{CORE}/pods": pods})
    assert facts.upper[INSTALLED].logs == {"shop/vn": []}


async def test_events_of_a_waiting_replica_are_read():
    """A replica that rejects its configuration is not Ready and has an event with the reason; the probe's failure is no reason."""
    mine = pod("vn", labels={"app.kubernetes.io/name": "virtual-node"})
    mine["status"] = {"containerStatuses": [{"name": "c", "state": {"running": {}}}]}

    def event(reason: str, second: int) -> dict[str, Any]:
        metadata = {"name": reason.lower(), "namespace": "shop", "uid": reason}
        when = f"2026-01-01T00:00:0{second}Z"
        return {
            "metadata": metadata,
            "reason": reason,
            "type": "Warning",
            "message": f"{reason} message",
            "lastTimestamp": when,
        }

    events = _listed(event("ConfigurationRejected", 1), event("Unhealthy", 2))
    facts, _ = await _look(**{f"{CORE}/pods": _listed(mine), f"{CORE}/namespaces/shop/events": events})
    assert facts.upper[INSTALLED].logs == {"shop/vn": ["ConfigurationRejected message"]}


@pytest.mark.parametrize("label", ["app.kubernetes.io/name", "app.kubernetes.io/part-of"])
async def test_only_pods_of_virtual_nodes_are_read(label: str):
    """A failed `helm test` or a descheduler scaled to 0 does not explain a missing virtual node.

    With the chart's nameOverride they are found by their label part-of.
    """

    def labelled(name: str, component: str) -> dict[str, Any]:
        return pod(name, labels={label: "virtual-node", "app.kubernetes.io/component": component})

    found = [
        labelled(name, name) for name in ("descheduler", "scheduler", "test", "uninstall", "virtual-node")
    ]

    def answer(request: web.Request) -> web.StreamResponse:
        wanted = request.query.get("labelSelector", "").startswith(f"{label}=virtual-node")
        return _listed(*(found if wanted else []))(request)

    facts, _ = await _look(**{f"{CORE}/pods": answer, "/apis/apps/v1/deployments": answer})
    assert len(facts.upper[INSTALLED].pods) == 5
    facts.upper[INSTALLED].pods[-1]["spec"]["nodeName"] = "real"
    assert "its pod shop/virtual-node is Pending" in process_trouble(facts.upper[INSTALLED], NOW)[0]


async def _webhook(**table: Answer) -> tuple[Snapshot, Server]:
    endpoints = {
        "metadata": {"name": "webhook-1"},
        "endpoints": [{"conditions": {"ready": True}}, {"conditions": {"ready": False}}, {}],
    }
    return await _look(
        **{
            WEBHOOKS: _listed(configuration(), {"metadata": {"name": "other"}, "webhooks": []}),
            "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices": _listed(endpoints),
            **table,
        }
    )


async def test_a_labelled_pod_is_tested_by_a_dry_run():
    """Endpoints without a readiness are ready."""
    facts, server = await _webhook(
        **{TRIAL: lambda _request: reply({"metadata": {"name": "tried"}}, status=201)}
    )
    webhook = facts.upper[WEBHOOK]
    assert webhook.endpoints == {"kube-system/webhook": 2}
    assert webhook.dry_run == Probe(201)
    assert webhook.dry_run_pod["metadata"]["name"] == "tried"
    (trial,) = [asked for asked in server.asked if asked.path == TRIAL]
    assert (trial.method, trial.query["dryRun"]) == ("POST", "All")
    assert trial.json["metadata"]["labels"] == {"virtual-pod": "true"}


async def test_a_failing_webhook_is_quoted():
    """With the API server's message."""
    facts, _ = await _webhook(
        **{TRIAL: lambda _request: failure(500, "InternalError", "failed calling webhook")}
    )
    assert facts.upper[WEBHOOK].dry_run == Probe(500, "failed calling webhook")


async def test_a_url_is_requested_with_the_registered_ca_bundle():
    """An unreadable bundle or an unreachable address is a result and not an error."""
    for client in (
        {"url": "https://127.0.0.1:1/mutate", "caBundle": ""},
        {"url": "https://127.0.0.1:1/mutate", "caBundle": "bm9uc2Vuc2U="},
    ):
        facts, _ = await _look(**{WEBHOOKS: _listed(configuration(client))})
        assert facts.upper[WEBHOOK].urls["https://127.0.0.1:1/mutate"].code == 0


def test_the_probe_pod_is_admitted_everywhere():
    """By Pod Security's strictest level, and by quotas that require requests and limits."""
    spec = webhook_test_pod()["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["requests"] == container["resources"]["limits"]


async def test_a_lower_clusters_nodes_and_pending_pods_are_read():
    """Pods by the ownership label; a refusal is recorded."""
    found: list[str] = []

    async def script(request: web.Request) -> web.StreamResponse:
        if request.path == "/version":
            return ANSWERS["/version"](request)
        if request.path == f"{CORE}/pods":
            found.append(request.query["labelSelector"])
            return _listed()(request)
        if request.path == f"{CORE}/nodes":
            return _listed(node(virtual=False))(request)
        if request.path == f"{CORE}/namespaces":
            return _listed(namespace)(request)
        if request.path == f"{CORE}/services":
            return _listed()(request)
        if request.path.endswith("/configz"):
            return web.json_response({"kubeletconfig": {"clusterDomain": "app.pre"}})
        return failure(404, "NotFound")

    marks = {
        "labels": {"virtual-node.io/upper-cluster": "me"},
        "annotations": {"virtual-node.io/upper-namespace": "shop"},
    }
    namespace = {"metadata": {"name": "up-shop", "uid": "n", **marks}}

    async def forbidden(request: web.Request) -> web.StreamResponse:
        return ANSWERS["/version"](request) if request.path == "/version" else failure(403, "Forbidden")

    async with serve(script) as server, Client(ConnectionConfig(server.url)) as client:
        lower = View("a.yaml")
        await read_lower(client, lower)
    assert (lower[VERSION], len(lower.of("Node"))) == ("v1.34.1", 1)
    assert found == ["virtual-node.io/upper-uid"]
    assert (lower[NAMES].domain, lower[NAMES].renamed) == ("app.pre", "namespace shop is up-shop there")
    async with serve(forbidden) as server, Client(ConnectionConfig(server.url)) as client:
        with pytest.raises(ApiError, match="403"):
            await read_lower(client, View("b.yaml"))


async def test_a_held_lease_of_the_descheduler_hides_a_released_one():
    """An earlier descheduler that ran by hand has left its Lease in kube-system."""

    def lease(namespace: str, **spec: str) -> dict[str, Any]:
        return {"metadata": {"name": "virtual-node-descheduler", "namespace": namespace}, "spec": spec}

    held = lease("vn", holderIdentity="a", renewTime="2026-01-01T00:00:00.000000Z")
    older = lease("zz", holderIdentity="b", renewTime="2025-01-01T00:00:00.000000Z")
    released = lease("kube-system", holderIdentity="", renewTime="2026-01-01T00:00:01.000000Z")
    facts, _ = await _look(**{ALL_LEASES: _listed(released, held, older)})
    found = active_lease(facts.upper[DESCHEDULERS])
    assert found is not None
    assert found["spec"] == held["spec"]


async def test_a_descheduler_of_the_chart_is_found_in_its_own_namespace():
    """Only an installation by hand has its Lease in kube-system."""
    lease = {"metadata": {"name": "virtual-node-descheduler", "namespace": "vn"}, "spec": {}}

    def leases(request: web.Request) -> web.StreamResponse:
        wanted = request.query.get("fieldSelector") == "metadata.name=virtual-node-descheduler"
        return _listed(*([lease] if wanted else []))(request)

    facts, _ = await _look(**{ALL_LEASES: leases})
    assert facts.upper[DESCHEDULERS]
    assert facts.upper[SCHEDULERS] == []
