"""Patches that name the object that they are for."""

from __future__ import annotations

from typing import Any

import pytest

from controller_runtime import resources
from controller_runtime.client.client import PatchType
from controller_runtime.errors import Conflict, Invalid
from tests.unit.virtual_node.controllers.cluster import Cluster
from virtual_node.controllers.base.preconditions import create_new, patch_only

IMMUTABLE = {"details": {"causes": [{"field": "metadata.uid", "message": "field is immutable"}]}}
"""Message of an API server about a patch with another object's uid."""
WRONG_SPEC = {"details": {"causes": [{"field": "spec.containers", "message": "Required value"}]}}


class Api:
    """Records patches, or refuses them."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.sent: list[tuple[Any, dict[str, Any]]] = []
        self._refusal = refusal

    async def patch(self, _resource, _name, patch, **options):
        if self._refusal is not None:
            raise self._refusal
        self.sent.append((patch, options))


async def _patch(api: Any, patch: dict[str, Any], **options: Any) -> None:
    web = {"metadata": {"name": "web", "namespace": "shop", "uid": "u-1"}}
    await patch_only(api, resources.PODS, web, patch, **options)


async def test_a_patch_carries_the_uid_of_its_object():
    """So the API server refuses it for another one; the caller's dict is not changed."""
    api, patch = Api(), {"metadata": {"labels": {"a": "b"}}, "spec": {}}
    await _patch(api, patch)
    assert api.sent == [
        ({"metadata": {"labels": {"a": "b"}, "uid": "u-1"}, "spec": {}}, {"namespace": "shop"})
    ]
    assert patch == {"metadata": {"labels": {"a": "b"}}, "spec": {}}


async def test_subresource_and_kind_of_patch_are_passed_on():
    api = Api()
    await _patch(api, {"spec": {}}, subresource="resize", patch_type=PatchType.STRATEGIC)
    options = {"namespace": "shop", "subresource": "resize", "patch_type": PatchType.STRATEGIC}
    assert api.sent == [({"spec": {}, "metadata": {"uid": "u-1"}}, options)]


async def test_a_patch_may_carry_the_version_of_its_object():
    """The API server refuses it once the object has changed."""
    api = Api()
    await _patch(api, {}, resource_version="7")
    assert api.sent == [({"metadata": {"uid": "u-1", "resourceVersion": "7"}}, {"namespace": "shop"})]


async def test_another_object_of_that_name_is_a_conflict():
    """Invalid because of the uid is no permanent error: the caller reads again."""
    with pytest.raises(Conflict, match="Pod web is another one by now"):
        await _patch(Api(Invalid("metadata.uid: field is immutable", status=IMMUTABLE)), {})


async def test_an_invalid_patch_stays_invalid():
    """Only an error about the uid becomes a Conflict."""
    with pytest.raises(Invalid):
        await _patch(Api(Invalid("spec.containers: Required value", status=WRONG_SPEC)), {})
    with pytest.raises(Invalid):
        await _patch(Api(Invalid("no Status at all")), {})


async def test_an_object_is_created_or_the_one_of_its_name_returned():
    """The caller checks its owner."""
    api: Any = Cluster("lower")
    api.put("namespaces", {"metadata": {"name": "shop"}})
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "namespace": "shop"}}
    assert await create_new(api, resources.SECRETS, body) is None
    there = await create_new(api, resources.SECRETS, body)
    assert there is not None
    assert (there.key, there.uid) == ("shop/a", api.the("secrets", "shop/a")["metadata"]["uid"])
