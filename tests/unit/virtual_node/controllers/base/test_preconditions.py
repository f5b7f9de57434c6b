"""Patches that name the object that they are for."""

from __future__ import annotations

from typing import Any

import pytest

from controller_runtime import resources
from controller_runtime.client.client import PatchType
from controller_runtime.errors import Conflict, Invalid
from virtual_node.controllers.base.preconditions import patch_only

IMMUTABLE = {"details": {"causes": [{"field": "metadata.uid", "message": "field is immutable"}]}}
"""What an API server says of a patch with another object's uid."""
WRONG_SPEC = {"details": {"causes": [{"field": "spec.containers", "message": "Required value"}]}}


class Api:
    """Keeps the patches, or refuses them."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.sent: list[tuple[Any, dict[str, Any]]] = []
        self._refusal = refusal

    async def patch(self, _resource, _name, patch, **options):
        if self._refusal is not None:
            raise self._refusal
        self.sent.append((patch, options))


async def _patch(api: Any, patch: dict[str, Any], **options: Any) -> None:
    await patch_only(api, resources.PODS, "web", patch, uid="u-1", namespace="shop", **options)


async def test_a_patch_carries_the_uid_of_its_object():
    """The API server can refuse it for any other; the caller's own dict stays as it was."""
    api, patch = Api(), {"metadata": {"labels": {"a": "b"}}, "spec": {}}
    await _patch(api, patch)
    assert api.sent == [
        ({"metadata": {"labels": {"a": "b"}, "uid": "u-1"}, "spec": {}}, {"namespace": "shop"})
    ]
    assert patch == {"metadata": {"labels": {"a": "b"}}, "spec": {}}


async def test_subresource_and_kind_of_patch_are_passed_on():
    """A strategic patch of a subresource stays one."""
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
    """What is Invalid for its uid is not wrong in itself: the caller looks again and need not give up."""
    with pytest.raises(Conflict, match="Pod web is another one by now"):
        await _patch(Api(Invalid("metadata.uid: field is immutable", status=IMMUTABLE)), {})


async def test_a_patch_that_is_wrong_in_itself_stays_invalid():
    """Only the uid is turned into a Conflict."""
    with pytest.raises(Invalid):
        await _patch(Api(Invalid("spec.containers: Required value", status=WRONG_SPEC)), {})
    with pytest.raises(Invalid):
        await _patch(Api(Invalid("no Status at all")), {})
