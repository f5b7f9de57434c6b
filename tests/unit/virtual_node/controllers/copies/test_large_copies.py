"""Large copies are cached without their values, and are still kept equal to their upper objects."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clusterset.model import names
from controller_runtime.objects import from_dict
from tests.unit.virtual_node.controllers.copies.test_object_limits import (
    put_config_maps,
    referencing,
)
from tests.unit.virtual_node.controllers.pod_controller_setup import running
from virtual_node.controllers.base.caches import shrink_large
from virtual_node.translate.kinds import CONFIG_MAPS
from virtual_node.translate.objects.references import without_values
from virtual_node.translate.pods.service_account import fingerprint

pytestmark = pytest.mark.looptime


def cached(**fields: Any) -> dict[str, Any]:
    """A large copy as the cache has it."""
    whole = {"kind": "ConfigMap", "metadata": {"name": "c", "labels": {}}, **fields}
    kept = without_values(from_dict(whole))
    assert kept.memory < 2500
    return kept.to_dict()


def desired(**fields: Any) -> dict[str, Any]:
    return {"kind": "ConfigMap", "metadata": {"name": "c"}, **fields}


LARGE = {"a": "x" * 100_000, "b": "1"}


@pytest.mark.parametrize(
    ("lower", "wanted", "patch"),
    [
        ({"data": LARGE}, {"data": LARGE}, None),
        ({"data": LARGE}, {"data": {**LARGE, "b": "2"}}, {"data": {**LARGE, "b": "2"}}),
        ({"data": {**LARGE, "c": "added"}}, {"data": LARGE}, {"data": {**LARGE, "c": None}}),
        ({"data": LARGE}, {"data": {}}, {"data": {"a": None, "b": None}}),
        ({"data": LARGE, "binaryData": {"z": "AA=="}}, {"data": LARGE, "binaryData": {"z": "AA=="}}, None),
    ],
    ids=["equal", "changed", "added in the lower cluster", "emptied", "binary"],
)  # fmt: skip
def test_patch_from_a_cached_copy(lower: dict[str, Any], wanted: dict[str, Any], patch: Any):
    """It restores the content and removes what others added."""
    found = CONFIG_MAPS.patch(cached(**lower), desired(**wanted))
    if patch is None:
        assert found is None
    else:
        assert found is not None
        assert found == patch


def test_values_that_move_between_fields_are_a_change():
    text = {"a": "eA==" * 1000}
    assert CONFIG_MAPS.patch(cached(data=text), desired(binaryData=text)) is not None


def test_small_copies_shared_tokens_and_certificates_are_kept_as_they_are():
    small = from_dict({"kind": "Secret", "metadata": {"name": "s"}, "data": {"a": "eA=="}})
    assert without_values(small) is small
    metadata: dict[str, Any]
    for metadata in (
        {"labels": {"virtual-node.io/token-of": "0" * 32}},
        {
            "labels": {"virtual-node.io/token-of": "u-1"},
            "annotations": {names.ANNOTATION_CERTIFICATE_TIMES: "{}"},
        },
    ):
        kept = from_dict({"kind": "Secret", "metadata": {"name": "s", **metadata}, "data": LARGE})
        assert without_values(kept) is kept


def test_a_token_secret_of_one_pod_is_cached_without_its_tokens():
    """Their entries are still compared one by one."""
    labels = {"virtual-node.io/token-of": "6f1c1a5e-1111-2222-3333-444455556666"}
    secret = {
        "kind": "Secret",
        "metadata": {"name": "s", "labels": labels},
        "data": {"token-0": "secret-a", "token-1": "b"},
    }
    cached_secret = without_values(from_dict(secret))
    assert b"secret-a" not in cached_secret.to_json()
    assert set(fingerprint(cached_secret.to_dict())) == set(fingerprint(secret))
    changed = {**secret, "data": {"token-0": "secret-a", "token-1": "c"}}
    known = set(fingerprint(secret))
    assert len(known - set(fingerprint(without_values(from_dict(changed)).to_dict()))) == 1


async def test_a_large_copy_follows_and_is_repaired():
    """Also after a change in the lower cluster, and without a write while nothing changes."""
    async with running() as scene:
        put_config_maps(scene, 1, value="x" * 50_000)
        scene.bind(containers=referencing(1))
        await asyncio.sleep(10)
        assert scene.lower.the("configmaps", "shop/c-1")["data"] == {"a": "x" * 50_000}
        writes = [call for call in scene.lower.calls if call[1] == "configmaps" and call[0] != "get"]
        await asyncio.sleep(700)
        assert [call for call in scene.lower.calls if call[1] == "configmaps" and call[0] != "get"] == writes
        scene.lower.change("configmaps", "shop/c-1", data={"a": "forged" * 1000, "b": "added"})
        await asyncio.sleep(10)
        assert scene.lower.the("configmaps", "shop/c-1")["data"] == {"a": "x" * 50_000}
        put_config_maps(scene, 1, value="y" * 50_000)
        await asyncio.sleep(10)
        assert scene.lower.the("configmaps", "shop/c-1")["data"] == {"a": "y" * 50_000}


def test_a_large_lower_pod_keeps_only_what_is_compared():
    env = [{"name": f"V{number}", "value": "x" * 100} for number in range(1000)]
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}, "env": env}
    volumes = [{"name": "v", "emptyDir": {}}]
    spec = {"nodeName": "n", "containers": [container], "volumes": volumes}
    pod = from_dict({"kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
    kept = {field: container[field] for field in ("name", "image", "resources")}
    assert shrink_large(pod).spec == {**spec, "containers": [kept]}
    small = from_dict(
        {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "env": []}]}}
    )
    assert shrink_large(small) is small
