"""How many nodes a lower cluster can add, what they offer at most, and errors of the settings."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from clusterset.model import autoscaling
from clusterset.model.autoscaling import Autoscaling

CPU = {"name": "cpu", "resources": {"cpu": "8", "memory": "16Gi"}, "labels": {"pool": "cpu"}}
GPU = {
    "name": "gpu",
    "resources": {"cpu": "4", "memory": "64Gi", "example.com/gpu": "2"},
    "labels": {"pool": "gpu"},
    "maxNodes": 1,
}


def _read(**settings: Any) -> Autoscaling:
    return msgspec.convert({"maxNodes": 3, "shapes": [CPU, GPU], **settings}, Autoscaling)


@pytest.mark.parametrize(
    ("existing", "expected"),
    [
        # Most memory: one large node and two small ones. Most cpu: three small nodes.
        ([], {"cpu": 24_000, "memory": 96 << 30, "example.com/gpu": 2, "pods": 330}),
        ([{"pool": "gpu"}], {"cpu": 16_000, "memory": 32 << 30, "pods": 220}),
        ([{"pool": "cpu"}] * 2, {"cpu": 8_000, "memory": 64 << 30, "example.com/gpu": 2, "pods": 110}),
        ([{"pool": "cpu"}] * 4, {}),
        ([{"pool": "cpu", "type": "virtual-kubelet"}, {}] * 4,
         {"cpu": 24_000, "memory": 96 << 30, "example.com/gpu": 2, "pods": 330}),
    ],
    ids=["empty", "shape used up", "two of three", "all used up", "other nodes"],
)  # fmt: skip
def test_capacity_of_nodes_that_can_be_added(existing, expected):
    growth = _read()
    shapes = [autoscaling.matching_shapes(growth, {}, labels) for labels in existing]
    assert autoscaling.most(growth, [found for found in shapes if found]) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, ""),
        ({"shapes": []}, "a.shapes: at least one shape is required"),
        ({"shapes": [{**CPU, "name": ""}]}, "a.shapes[0].name: required"),
        ({"shapes": [CPU, CPU]}, "a.shapes[1].name: 'cpu' is there twice"),
        ({"shapes": [{**CPU, "resources": {"cpu": "1"}}]}, "a.shapes[0].resources.memory: required"),
        (
            {"shapes": [{**CPU, "resources": {"cpu": "much", "memory": "1"}}]},
            "a.shapes[0].resources.cpu: 'much' is not a positive quantity",
        ),
        (
            {"shapes": [{**CPU, "taints": [{"key": "k", "effect": "Maybe"}]}]},
            "a.shapes[0].taints: effect 'Maybe' is not one of NoSchedule, NoExecute, PreferNoSchedule",
        ),
    ],
)
def test_errors_name_the_field(settings, message):
    assert "".join(autoscaling.problems("a", _read(**settings))) == message
