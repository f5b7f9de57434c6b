"""Copies in lower clusters whose version does not know a field or a value of the upper object."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from clusterset.model import names
from controller_runtime.errors import Invalid
from tests.unit.virtual_node.controllers.copies import follow_setup
from tests.unit.virtual_node.controllers.copies.service_controller_setup import Scene

pytestmark = pytest.mark.looptime
Check = Callable[[dict[str, Any]], None]


def _admit(monkeypatch: pytest.MonkeyPatch, lower: Any, check: Check) -> None:
    """Call a function with the spec of each write to the lower cluster; it may change the spec or raise."""
    create, patch = lower.create, lower.patch

    async def checked_create(resource: Any, body: Any, **options: Any) -> Any:
        spec = dict(body.get("spec") or {})
        check(spec)
        return await create(resource, {**body, "spec": spec}, **options)

    async def checked_patch(resource: Any, name: str, body: Any, **options: Any) -> Any:
        spec = dict(body.get("spec") or {})
        check(spec)
        return await patch(resource, name, {**body, "spec": spec}, **options)

    monkeypatch.setattr(lower, "create", checked_create)
    monkeypatch.setattr(lower, "patch", checked_patch)


def _drop_policy(spec: dict[str, Any]) -> None:
    """Store as Kubernetes before 1.26."""
    spec.pop("unhealthyPodEvictionPolicy", None)


def _drop_traffic(spec: dict[str, Any]) -> None:
    spec.pop("trafficDistribution", None)


def _refuse_new_traffic(spec: dict[str, Any]) -> None:
    """Validate as Kubernetes 1.31 to 1.33."""
    if spec.get("trafficDistribution") not in (None, "PreferClose"):
        message = 'Service "web" is invalid: spec.trafficDistribution: Unsupported value: supported values: "PreferClose"'
        raise Invalid(message, code=422)


_UNKNOWN_FILTER = 'filters[0].type: Unsupported value: "CORS": supported values: "URLRewrite"'
"""Gateway API before 1.5."""
_EARLIER_FILTER = 'filters[0].cors.allowCredentials: Unsupported value: false: supported values: "true"'
"""The experimental channel of Gateway API 1.3, which knows the filter with other values."""


def _refusing_cors(why: str) -> Callable[[dict[str, Any]], None]:
    """Return a validation that refuses the filter CORS."""

    def validate(spec: dict[str, Any]) -> None:
        if any(
            one["type"] == "CORS" for rule in spec.get("rules") or () for one in rule.get("filters") or ()
        ):
            raise Invalid(f'HTTPRoute "web" is invalid: spec.rules[1].{why}', code=422)

    return validate


@pytest.mark.parametrize("why", [_UNKNOWN_FILTER, _EARLIER_FILTER])
async def test_a_filter_that_the_lower_cluster_does_not_know_leaves_only_its_rule_without_backends(
    monkeypatch, why
):
    scene = follow_setup.Scene("gateways", kind="HTTPRoute")
    scene.add_pod()
    metadata = {
        "name": "web", "namespace": "shop", "uid": "copy-web", "labels": {names.LABEL_UPPER_CLUSTER: "upper-1"},
        "annotations": {names.ANNOTATION_UPPER_NAMESPACE: "shop"},
    }  # fmt: skip
    scene.lower.put("services", {"metadata": metadata, "spec": {}})
    web = {"backendRefs": [{"name": "web", "port": 80}]}
    cors = {**web, "matches": [{"path": {"value": "/api"}}], "filters": [{"type": "CORS", "cors": {}}]}
    key = scene.add({"parentRefs": [{"name": "g"}], "rules": [web]})
    _admit(monkeypatch, scene.lower, _refusing_cors(why))
    for rules in ([web], [web, cors], [web, web, cors]):
        scene.add({"parentRefs": [{"name": "g"}], "rules": rules})
        for _ in range(5):
            await scene.controller.reconcile(key)
            await asyncio.sleep(1)
        copy = scene.copy()
        assert copy is not None
        assert copy["spec"]["rules"] == [
            rule if rule is web else {"matches": cors["matches"]} for rule in rules
        ]
    assert scene.writes() == ["create", "patch", "patch"]
    assert {reason for reason, _ in scene.reported} == {"CopyIncomplete"}
    scene.lower.remove("httproutes", key)
    await scene.controller.reconcile(key)
    reason, text = scene.reported[-1]
    assert (reason, "does not know the filter CORS" in text) == ("PartlyMirrored", True)
    monkeypatch.undo()
    scene.lower.remove("httproutes", key)
    await scene.controller.reconcile(key)
    copy = scene.copy()
    assert copy is not None
    assert copy["spec"]["rules"] == [web, web, cors]


async def test_a_field_that_the_lower_cluster_drops_is_not_sent_again_and_again(monkeypatch):
    """And it is reported by its name, not as the work of another program."""
    scene = follow_setup.Scene("podDisruptionBudgets")
    scene.add_pod(a="b")
    _admit(monkeypatch, scene.lower, _drop_policy)
    spec = {"selector": {}, "unhealthyPodEvictionPolicy": "AlwaysAllow"}
    key = scene.add(spec)
    for _ in range(20):
        await scene.controller.reconcile(key)
        await asyncio.sleep(1)
    assert scene.writes() == ["create", "patch"]
    ((reason, text),) = scene.reported
    assert reason == "CopyIncomplete"
    assert "does not store spec.unhealthyPodEvictionPolicy of" in text
    scene.add({**spec, "selector": {"matchLabels": {"a": "b"}}})
    await scene.controller.reconcile(key)
    copy = scene.copy()
    assert copy is not None
    assert copy["spec"]["selector"]["matchLabels"]["a"] == "b", "other changes are written"


async def test_a_dropped_field_is_sent_again_later():
    """Because the lower cluster may have been upgraded."""
    scene = Scene()
    key = scene.add_service(trafficDistribution="PreferClose")
    scene.add_pod()
    with pytest.MonkeyPatch.context() as before_upgrade:
        _admit(before_upgrade, scene.lower, _drop_traffic)
        for _ in range(10):
            await scene.controller.reconcile(key)
    assert [verb for verb, _ in scene.wrote()] == ["create", "patch"]
    assert scene.reported == [("Warning", "CopyIncomplete")]
    await asyncio.sleep(1000)
    await scene.controller.reconcile(key)
    assert scene.copy()["spec"]["trafficDistribution"] == "PreferClose"


@pytest.mark.parametrize("wanted", ["PreferSameNode", "PreferSameZone"])
async def test_a_traffic_distribution_that_the_lower_cluster_refuses_does_not_prevent_the_copy(
    monkeypatch, wanted
):
    scene = Scene()
    _admit(monkeypatch, scene.lower, _refuse_new_traffic)
    key = scene.add_service(trafficDistribution=wanted)
    scene.add_pod()
    for _ in range(10):
        await scene.controller.reconcile(key)
    assert scene.copy()["spec"]["trafficDistribution"] == "PreferClose"
    assert len(scene.wrote()) <= 3
    assert scene.reported == ([("Warning", "CopyIncomplete")] if wanted == "PreferSameNode" else [])


async def test_a_change_to_a_refused_traffic_distribution_does_not_prevent_other_changes(monkeypatch):
    scene = Scene()
    _admit(monkeypatch, scene.lower, _refuse_new_traffic)
    key = scene.add_service()
    scene.add_pod()
    await scene.controller.reconcile(key)
    scene.add_service(trafficDistribution="PreferSameNode", ports=[{"port": 81}])
    for _ in range(10):
        await scene.controller.reconcile(key)
    spec = scene.copy()["spec"]
    assert (spec["trafficDistribution"], spec["ports"]) == ("PreferClose", [{"port": 81}])
    assert len(scene.wrote()) <= 4


async def test_a_lower_cluster_that_knows_the_value_gets_it():
    scene = Scene()
    key = scene.add_service(trafficDistribution="PreferSameNode")
    scene.add_pod()
    for _ in range(3):
        await scene.controller.reconcile(key)
    assert scene.copy()["spec"]["trafficDistribution"] == "PreferSameNode"
    assert [verb for verb, _ in scene.wrote()] == ["create"]
