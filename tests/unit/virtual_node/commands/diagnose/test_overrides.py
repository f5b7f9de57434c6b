"""What ``diagnose`` shows of overrides, from an annotation that users of the lower cluster can change."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from clusterset.model import names
from virtual_node.commands.diagnose import override_changes
from virtual_node.examine.pod_view import PodView


def _pod(image: str, record: str | None = None) -> dict[str, Any]:
    annotations = {} if record is None else {names.ANNOTATION_OVERRIDES: record}
    return {
        "metadata": {"annotations": annotations},
        "spec": {"containers": [{"name": "app", "image": image}]},
    }


def _shown(record: str | None) -> list[str]:
    view = PodView(
        pod=_pod("nginx:1"),
        node=None,
        lease=None,
        lower=_pod("m.example/library/nginx:1", record),
        events=(),
        virtual_nodes=None,
        now=datetime.now(UTC),
    )
    return override_changes(view)


def test_each_changed_field_is_shown_with_its_override():
    """Images with both values; other values may be secret."""
    fields = ["spec.containers[app].image", "spec.containers[app].env[TOKEN]"]
    assert _shown(json.dumps({"mirror": fields[:1], "proxy": fields[1:]})) == [
        "mirror: spec.containers[app].image: nginx:1 → m.example/library/nginx:1",
        "proxy: spec.containers[app].env[TOKEN]",
    ]


@pytest.mark.parametrize(
    "record", [None, "", "{", "[]", "5", '{"a": 5}', '{"a": [5, {}]}', "[" * 5000, "1" * 10000]
)
def test_an_annotation_of_others_is_no_error(record):
    """It shows nothing."""
    assert _shown(record) == []


def test_a_huge_annotation_is_cut():
    """The rest of the diagnosis stays readable."""
    assert len(_shown(json.dumps({"a": ["x"] * 1000}))) == 100
