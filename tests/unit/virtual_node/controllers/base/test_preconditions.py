"""Patches that name the object that they are for."""

from __future__ import annotations

from typing import Any

import pytest

from controller_runtime import resources
from controller_runtime.client.client import PatchType
from controller_runtime.errors import Conflict, Invalid
from tests.fakes.apiserver.client import refusing
from tests.unit.virtual_node.controllers.cluster import Cluster
from virtual_node.controllers.base.preconditions import create_new, patch_only

WEB: dict[str, Any] = {
    "metadata": {"name": "web", "namespace": "shop", "uid": "u-1"},
    "spec": {"containers": [{"name": "main"}]},
}
"""The pod that the caller read."""


def _lower(uid: str = "u-1") -> Any:
    """Return a lower cluster with a pod of that name."""
    lower = Cluster("lower")
    lower.put("pods", {**WEB, "metadata": {**WEB["metadata"], "uid": uid}})
    return lower


async def test_the_object_that_was_read_is_patched():
    """The caller's dict is not changed."""
    lower, patch = _lower(), {"metadata": {"labels": {"a": "b"}}}
    await patch_only(lower, resources.PODS, WEB, patch)
    assert lower.the("pods", "shop/web")["metadata"]["labels"] == {"a": "b"}
    assert patch == {"metadata": {"labels": {"a": "b"}}}


async def test_subresource_and_kind_of_patch_are_passed_on():
    """A strategic merge patch keeps the other fields of a container."""
    lower = _lower()
    resize = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}}
    await patch_only(lower, resources.PODS, WEB, resize, subresource="resize", patch_type=PatchType.STRATEGIC)
    assert lower.asked("patch", "pods/resize") == ["shop/web"]
    assert lower.the("pods", "shop/web")["spec"] == resize["spec"]


async def test_a_patch_may_carry_the_version_of_its_object():
    """The API server refuses it once the object has changed."""
    lower = _lower()
    version = lower.the("pods", "shop/web")["metadata"]["resourceVersion"]
    await patch_only(
        lower, resources.PODS, WEB, {"metadata": {"labels": {"a": "b"}}}, resource_version=version
    )
    with pytest.raises(Conflict):
        await patch_only(lower, resources.PODS, WEB, {}, resource_version=version)


async def test_another_object_of_that_name_is_a_conflict():
    """Invalid because of the uid is no permanent error: the caller reads again."""
    lower = _lower("u-2")
    with pytest.raises(Conflict, match="Pod web is another one by now"):
        await patch_only(lower, resources.PODS, WEB, {"metadata": {"labels": {"a": "b"}}})
    assert "labels" not in lower.the("pods", "shop/web")["metadata"]


@pytest.mark.parametrize(
    "status", [{}, {"details": {"causes": [{"field": "spec.containers", "message": "Required value"}]}}]
)
async def test_an_invalid_patch_stays_invalid(status):
    """Only an error about the uid becomes a Conflict."""
    lower = _lower()
    lower.fault = refusing(Invalid("spec.containers: Required value", status=status))
    with pytest.raises(Invalid):
        await patch_only(lower, resources.PODS, WEB, {})


async def test_an_object_is_created_or_the_one_of_its_name_returned():
    """The caller checks its owner."""
    api: Any = Cluster("lower")
    api.put("namespaces", {"metadata": {"name": "shop"}})
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "namespace": "shop"}}
    assert await create_new(api, resources.SECRETS, body) is None
    there = await create_new(api, resources.SECRETS, body)
    assert there is not None
    assert (there.key, there.uid) == ("shop/a", api.the("secrets", "shop/a")["metadata"]["uid"])
