"""What ``virtual-node drain`` writes to nodes."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from clusterset.model import names
from tests.unit.controller_runtime.loopback import reply
from tests.unit.virtual_node.commands.run_command import NODES, Person


@pytest.mark.parametrize("before", [{}, {names.ANNOTATION_DRAIN: "{}"}])
async def test_an_earlier_request_is_removed_when_the_node_is_cordoned(
    person: Person, before: dict[str, str]
):
    """``kubectl uncordon`` leaves it. Moves that it began would be cancelled by the new request."""
    labels = {names.LABEL_NODE_TYPE: names.NODE_TYPE_VIRTUAL}
    node: dict[str, Any] = {"metadata": {"name": "vn", "labels": labels, "annotations": before}, "spec": {}}
    written: list[tuple[bool, str | None]] = []

    async def served(request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            patch = await request.json()
            text = patch["metadata"]["annotations"][names.ANNOTATION_DRAIN]
            written.append((patch["spec"]["unschedulable"], text))
            node["metadata"]["annotations"] = {names.ANNOTATION_DRAIN: text} if text else {}
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
    assert first is None
    assert second is not None
