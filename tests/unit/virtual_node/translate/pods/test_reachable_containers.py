"""Containers that users of an upper pod may name, and who added the debug containers of the lower pod."""

from __future__ import annotations

from typing import Any

import pytest

from clusterset.model import names
from virtual_node.translate.pods import containers
from virtual_node.translate.pods.containers import reachable

MAIN = {"name": "main"}
ITEM: dict[str, Any] = {".": {}, "f:image": {}, "f:name": {}}


def spec(*more: dict[str, Any], init: Any = (), debug: Any = ()) -> dict[str, Any]:
    """Return a pod spec with a container ``main``, and debug containers of these names."""
    return {
        "containers": [MAIN, *more],
        "initContainers": init,
        "ephemeralContainers": [{"name": name} for name in debug],
    }


def entry(
    *items: str, manager: str = "virtual-node", subresource: str = "ephemeralcontainers"
) -> dict[str, Any]:
    """Return an entry of ``managedFields`` with these debug containers."""
    fields = {".": {}, **{f'k:{{"name":"{name}"}}': ITEM for name in items}}
    return {
        "manager": manager, "operation": "Update", "subresource": subresource, "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:ephemeralContainers": fields}},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("above", "recorded", "found"),
    [
        (spec(), "", {"main"}),
        (spec(init=[{"name": "i"}]), "", {"main", "i"}),
        (spec(debug=["debug"]), "", {"main"}),
        (spec(debug=["debug"]), "debug", {"main", "debug"}),
        (spec(debug=["a", "b", "c"]), "a,c", {"main", "a", "c"}),
        (spec(debug=["debug"]), "debugger", {"main"}),
        (spec(), "gone", {"main"}),
        (spec({"name": "debug"}), "debug", {"main", "debug"}),
    ],
)  # fmt: skip
def test_debug_containers_of_the_lower_cluster_have_no_name_above(above, recorded, found):
    """Users can give a debug container the name of any container that was added in the lower cluster."""
    assert (
        reachable(above, containers.recorded_debuggers({names.ANNOTATION_DEBUG_CONTAINERS: recorded}))
        == found
    )


@pytest.mark.parametrize("added", [[], ["debug"], ["b", "a"]])
def test_the_record_is_read_as_it_was_written(added):
    assert containers.recorded_debuggers(containers.record_of_debuggers(added)) == set(added)
    assert containers.recorded_debuggers({}) == set()


@pytest.mark.parametrize(
    ("above", "below", "recorded", "unrecorded"),
    [
        (["d"], ["d"], [], {"d"}),
        (["d"], ["d"], ["d"], set()),
        (["d"], [], [], set()),
        ([], ["d"], [], set()),
        (["a", "b"], ["a", "b", "c"], ["a"], {"b"}),
    ],
)
def test_debug_containers_of_both_pods_need_a_record(above, below, recorded, unrecorded):
    found = containers.unrecorded_debuggers(spec(debug=above), spec(debug=below), recorded)
    assert found == unrecorded


@pytest.mark.parametrize(
    ("fields", "added"),
    [
        (None, set()),
        ([], set()),
        ([{}], set()),
        ([entry("d")], {"d"}),
        ([entry("d", manager="kubectl-debug")], set()),
        ([entry("a", "b"), entry("c", manager="kubectl-debug")], {"a", "b"}),
        ([entry("d", subresource="")], set()),
        ([{"manager": "virtual-node", "subresource": "ephemeralcontainers", "fieldsV1": None}], set()),
        (["d"], set()),
        ("d", set()),
        ([{**entry("d"), "fieldsV1": {"f:spec": {"f:ephemeralContainers": {"k:{": {}}}}}], set()),
        ([{**entry("d"), "fieldsV1": {"f:spec": {"f:ephemeralContainers": {'k:{"x":"d"}': {}}}}}], set()),
        ([{**entry("d"), "fieldsV1": {"f:spec": ["f:ephemeralContainers"]}}], set()),
        ([{**entry(), "fieldsV1": {"f:metadata": {"f:annotations": {}}}}], set()),
    ],
)
def test_managed_fields_show_who_added_a_debug_container(fields, added):
    """Only a request to the subresource adds one, and no request can change it later."""
    live = {"metadata": {"managedFields": fields}}
    assert containers.debuggers_added_by("virtual-node", live) == added
