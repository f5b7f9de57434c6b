"""What ``virtual-node drain`` writes to nodes."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from clusterset.model import names
from tests.unit.controller_runtime.loopback import reply
from tests.unit.virtual_node.commands.run_command import NODES, Person
from virtual_node.commands import parsers


@pytest.mark.parametrize(
    ("before", "is_cordoned", "expected"),
    [
        ({}, False, {}),
        ({names.ANNOTATION_DRAIN: "{}"}, False, {}),
        ({names.ANNOTATION_DRAIN: "{}"}, True, {names.ANNOTATION_DRAIN: "{}"}),
    ],
)
async def test_an_earlier_request_is_removed_unless_it_is_in_progress(
    person: Person,
    before: dict[str, str],
    is_cordoned: bool,  # noqa: FBT001
    expected: dict[str, str],
):
    """``kubectl uncordon`` leaves it, and it must not begin moves. Without it, moves in progress would be cancelled."""
    metadata: dict[str, Any] = {
        "name": "vn",
        "labels": {names.LABEL_NODE_TYPE: names.NODE_TYPE_VIRTUAL},
        "annotations": before,
    }
    node: dict[str, Any] = {"metadata": metadata, "spec": {"unschedulable": True} if is_cordoned else {}}
    written: list[tuple[bool, dict[str, str]]] = []

    async def served(request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            patch = await request.json()
            merged = metadata["annotations"] | patch.get("metadata", {}).get("annotations", {})
            metadata["annotations"] = {key: value for key, value in merged.items() if value is not None}
            written.append((patch["spec"]["unschedulable"], metadata["annotations"]))
        return reply(node)

    code, _, err = await person.types(
        "drain",
        "vn",
        "--timeout=100ms",
        objects={NODES: [node]},
        forbidden=("*/leases",),
        answers={f"{NODES}/vn": served},
    )
    assert code == 1, err
    (cordoned, first), (still_cordoned, second) = written
    assert cordoned
    assert still_cordoned
    assert first == expected
    assert "requestedAt" in second[names.ANNOTATION_DRAIN]


def test_flags_of_kubectl_drain_are_accepted():
    """So that a script needs no other flags for virtual nodes."""
    given = ["tokyo", "--ignore-daemonsets", "--force", "--delete-emptydir-data", "--timeout=5m"]
    options = parsers.drain().parse_args(given)
    assert (options.targets, options.delete_emptydir_data, options.timeout) == (["tokyo"], True, 300.0)
