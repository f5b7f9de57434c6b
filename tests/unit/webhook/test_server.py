"""The server with valid, invalid and hostile bodies: a patch, a denial or a 4xx."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from io import BytesIO
from typing import Any

import aiohttp
import msgspec
import prometheus_client
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from controller_runtime.serving.server import Bodies
from tests.waiting import becomes
from webhook.mutation.mutate import Surroundings
from webhook.server import MAX_BODY_BYTES, WebhookServer, parse, review_pod, review_workload


class _Knowledge:
    known = True

    async def wait(self, _seconds: float) -> str:
        return "" if self.known else "not read yet: virtual-nodes"

    def surroundings(self, _pod: Any, _namespace: str) -> Surroundings:
        return Surroundings(virtual_nodes=("vn",))


def _review(obj: Any, *, kind: str = "Pod", version: str = "v1", **request: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"admission.k8s.io/{version}",
        "kind": "AdmissionReview",
        "request": {
            "uid": "r-1",
            "kind": {"kind": kind},
            "operation": "CREATE",
            "namespace": "shop",
            "object": obj,
            **request,
        },
    }


def _pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"labels": {"virtual-pod": "true"}}, "spec": {"containers": [], **spec}}


@pytest_asyncio.fixture
async def server() -> AsyncIterator[str]:
    """Run a server; yield its URL."""
    async with WebhookServer("127.0.0.1", 0, tls=None, knowledge=_Knowledge()) as running:
        yield f"http://127.0.0.1:{running.port}"


async def test_counters_exist_before_the_first_review(server):
    """Otherwise the first denial would not be an increase."""
    names = [("pod", "refused"), ("workload", "denied")]
    values = [
        prometheus_client.REGISTRY.get_sample_value(
            "virtual_node_webhook_reviews_total", {"kind": kind, "outcome": outcome}
        )
        for kind, outcome in names
    ]
    assert None not in values


async def _post(url: str, body: bytes, *, content_type: str = "application/json") -> tuple[int, bytes]:
    headers = {"Content-Type": content_type}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=BytesIO(body), headers=headers) as answer,
    ):
        return answer.status, await answer.read()


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
@pytest.mark.parametrize("path", ["/mutate", "/", "/anything/else"])
async def test_responds_in_version_of_review_on_every_path(server, version, path):
    status, body = await _post(
        server + path, msgspec.json.encode(_review(_pod(nodeSelector={"a": "b"}), version=version))
    )
    answer = msgspec.json.decode(body)
    assert status == 200
    assert answer["apiVersion"] == f"admission.k8s.io/{version}"
    response = answer["response"]
    assert (response["uid"], response["allowed"], response["patchType"]) == ("r-1", True, "JSONPatch")
    patch = msgspec.json.decode(base64.b64decode(response["patch"]))
    assert {"op": "remove", "path": "/spec/nodeSelector"} in patch


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'{"kind": "AdmissionReview"}', 400),
        (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v2"}', 400),
        (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {}}', 400),
        (b"[" * 100_000, 400),
        (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {"uid": "u", "object": '
         + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}}", 400),
        (b"\xff\xfe", 400),
        (b" " * (MAX_BODY_BYTES + 1), 413),
    ],
    ids=["empty", "broken", "list", "no version", "unknown version", "no uid", "deep list", "deep object", "no text",
         "huge"],
)  # fmt: skip
async def test_refuses_bodies_that_are_not_reviews_and_keeps_serving(server, body, status):
    found, text = await _post(server + "/mutate", body)
    assert found == status
    assert text.strip()
    assert (await _post(server + "/mutate", msgspec.json.encode(_review(_pod()))))[0] == 200


async def test_responds_to_objects_near_the_maximum_depth(server):
    """Every object that can be decoded can also be compared and encoded."""
    found = set()
    for depth in range(900, 1000):
        deep = msgspec.Raw(b"[" * depth + b"]" * depth)
        pod = _pod(
            nodeSelector={"a": "b"}, tolerations=[{"key": deep}], affinity={"nodeAffinity": {"deep": deep}}
        )
        found.add((await _post(server + "/mutate", msgspec.json.encode(_review(pod))))[0])
    assert found == {200, 400}


async def test_incomplete_reviews_use_bounded_memory_and_delay_no_others():
    server = WebhookServer("127.0.0.1", 0, tls=None, knowledge=_Knowledge())
    server.bodies = Bodies(max_bytes=10_000, total_bytes=40_000, seconds=30)
    async with server:
        head = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10000\r\n\r\n"
        stalled = []
        for _ in range(20):
            stalled.append(await asyncio.open_connection("127.0.0.1", server.port))
            stalled[-1][1].write(head + b" " * 9000)

        async def held() -> int:
            return server.bodies.held

        await becomes(held, 36_000)
        assert await stalled[0][0].readline() == b"HTTP/1.1 503 Service Unavailable\r\n"
        url = f"http://127.0.0.1:{server.port}/mutate"
        assert (await _post(url, msgspec.json.encode(_review(_pod()))))[0] == 200
        for _, writer in stalled:
            writer.close()
        await becomes(held, 0)


async def test_refuses_reviews_until_caches_are_read():
    """Otherwise the name of a virtual node would move like a lower node's, and the pod would stay pending."""
    knowledge = _Knowledge()
    knowledge.known = False
    async with WebhookServer("127.0.0.1", 0, tls=None, knowledge=knowledge) as running:
        url = f"http://127.0.0.1:{running.port}/mutate"
        status, text = await _post(url, msgspec.json.encode(_review(_pod())))
        assert (status, text) == (503, b"not read yet: virtual-nodes\n")
        knowledge.known = True
        assert (await _post(url, msgspec.json.encode(_review(_pod()))))[0] == 200


async def test_refuses_other_content_types_and_methods(server):
    assert (await _post(server + "/mutate", b"a: b", content_type="application/yaml"))[0] == 415
    async with aiohttp.ClientSession() as session, session.get(server + "/mutate") as answer:
        assert answer.status == 405


async def test_denial_names_the_invalid_field(server):
    """It is not an HTTP error, so the user sees the message."""
    pod = _pod()
    pod["metadata"]["annotations"] = {"clusterSelector": "{"}
    status, body = await _post(server + "/mutate", msgspec.json.encode(_review(pod)))
    response = msgspec.json.decode(body)["response"]
    assert (status, response["allowed"], response["status"]["code"]) == (200, False, 422)
    assert "clusterSelector" in response["status"]["message"]


def _decide(review: Any) -> dict[str, Any]:
    request = parse(msgspec.json.encode(review))
    found: dict[str, Any] = msgspec.json.decode(review_pod(request, _Knowledge().surroundings))
    response: dict[str, Any] = found["response"]
    return response


@pytest.mark.parametrize(
    "review",
    [
        _review(_pod(nodeSelector={"a": "b"}), namespace="kube-system"),
        _review({"metadata": {}, "spec": {"nodeSelector": {"a": "b"}}}),
        _review(
            {"metadata": {"labels": {"virtual-pod": "true", "create-by-descheduler": "true"}}, "spec": {}}
        ),
        _review({}, kind="Service"),
        _review(_pod(nodeSelector={"a": "b"}), operation="UPDATE"),
    ],
    ids=["kube-system", "unlabelled", "descheduler", "another kind", "an update"],
)
def test_allows_other_objects_without_patch(review):
    response = _decide(review)
    assert response["allowed"]
    assert "patch" not in response


@pytest.mark.parametrize("obj", [{"metadata": []}, {"metadata": {}, "spec": 1}, {"spec": {}}, None, "pod"])
def test_denies_malformed_pods(obj):
    response = _decide(_review(obj))
    assert not response["allowed"]
    assert response["status"]["code"] == 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["nodeSelector", "affinity", "nodeAffinity", "tolerations", "key", "operator", "values",
                         "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms", "matchExpressions",
                         "preferredDuringSchedulingIgnoredDuringExecution", "volumes", "ephemeral", "name"]),
        inner, max_size=4,
    ),
    max_leaves=15,
)  # fmt: skip


@given(
    spec=st.dictionaries(st.sampled_from(["nodeSelector", "affinity", "tolerations", "volumes"]), JSON),
    owners=JSON,
)
def test_responds_to_arbitrary_fields(spec, owners):
    pod = {"metadata": {"labels": {"virtual-pod": "true"}, "ownerReferences": owners}, "spec": spec}
    assert "allowed" in _decide(_review(pod))


def _workload(kind: str, template: dict[str, Any]) -> dict[str, Any]:
    spec = {"template": template}
    obj = {"spec": {"jobTemplate": {"spec": spec}} if kind == "CronJob" else spec}
    request = parse(msgspec.json.encode(_review(obj, kind=kind)))
    found: dict[str, Any] = msgspec.json.decode(review_workload(request))["response"]
    return found


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"])
def test_workload_warnings_begin_with_path_of_field(kind):
    template = {
        "metadata": {"labels": {"virtual-pod": "true"}},
        "spec": {
            "nodeName": "n",
            "schedulerName": "s",
            "priorityClassName": "p",
            "runtimeClassName": "r",
            "hostNetwork": True,
            "resourceClaims": [{}],
            "topologySpreadConstraints": [{"topologyKey": "zone"}],
            "affinity": {
                "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]},
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"podAffinityTerm": {"topologyKey": "kubernetes.io/hostname"}}
                    ]
                },
            },
            "volumes": [{"name": "v", "hostPath": {"path": "/"}}],
        },
    }
    warnings = _workload(kind, template)["warnings"]
    prefix = "spec.jobTemplate.spec.template.spec." if kind == "CronJob" else "spec.template.spec."
    assert all(warning.startswith(prefix) for warning in warnings)
    text = " ".join(warnings)
    for field in ("nodeName", "schedulerName", "priorityClassName", "runtimeClassName", "hostNetwork",
                  "resourceClaims", "topologySpreadConstraints", "podAffinity", "volumes[v]"):  # fmt: skip
        assert field in text
    assert "podAntiAffinity" not in text


def test_warns_about_fields_that_no_policy_allows_by_default():
    """The webhook does not know the policies of lower clusters."""
    template = {
        "metadata": {"labels": {"virtual-pod": "true"}},
        "spec": {"hostNetwork": True, "priorityClassName": "system-node-critical"},
    }
    warnings = _workload("Deployment", template)["warnings"]
    assert len(warnings) == 2
    assert all("refused unless the policy of the lower cluster allows it" in warning for warning in warnings)


def test_warns_about_ignored_annotations_of_pods_and_templates():
    """The client prints them at ``kubectl apply``."""
    metadata = {
        "labels": {"virtual-pod": "true"},
        "annotations": {"virtual-node.io/kubernetes-service": "uper", "virtual-node.io/divison": "room"},
    }
    for path, warnings in (
        ("spec.template.metadata", _workload("Deployment", {"metadata": metadata, "spec": {}})["warnings"]),
        ("metadata", _decide(_review({"metadata": metadata, "spec": {}}))["warnings"]),
    ):
        value, key = warnings
        assert (
            value
            == f"{path}.annotations[virtual-node.io/kubernetes-service]: 'uper': write upper, lower or auto"
        )
        assert key.startswith(f"{path}.annotations[virtual-node.io/divison]: ")
        assert key.endswith("no annotation of pods has this name, did you mean virtual-node.io/division?")


def test_denies_workload_with_invalid_template():
    template = {
        "metadata": {"labels": {"virtual-pod": "true"}, "annotations": {"clusterSelector": "["}},
        "spec": {},
    }
    response = _workload("Deployment", template)
    assert not response["allowed"]
    assert "spec.template.metadata.annotations[clusterSelector]" in response["status"]["message"]


def test_ignores_workloads_without_label():
    assert _workload("Deployment", {"spec": {"nodeName": "n"}}) == {"uid": "r-1", "allowed": True}
