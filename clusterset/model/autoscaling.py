"""How a lower cluster may grow: the nodes that its autoscaler adds when a pod waits for room. No IO.

The virtual node adds these nodes to its capacity, and the multi-scheduler lets pods wait for them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from msgspec import Meta

from clusterset.model import names
from controller_runtime.apimachinery import quantity
from controller_runtime.apimachinery.decoding import ConfigStruct

TAINT_EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")
MARGIN_SECONDS = 5.0
"""A pod that waits these seconds longer than ``provisionSeconds`` is moved or rejected. In these seconds the
multi-scheduler records that no node came. Otherwise the replacement would wait for the same node."""
_REQUIRED = ("cpu", "memory")
_PODS = {"pods": "110"}
"""A kubelet's default number of pods, for shapes without one."""


class Taint(ConfigStruct):
    """A node taint, as in core/v1."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


class Shape(ConfigStruct):
    """A kind of node that the autoscaler adds, such as a node group, a machine template or an instance type."""

    name: str
    """Name for events and metrics."""
    resources: dict[str, str]
    """What a new node offers to pods, per resource: its allocatable without the requests of DaemonSets. ``cpu`` and
    ``memory`` are required; ``pods`` is 110 if it is missing."""
    labels: dict[str, str] = {}
    """Labels of these nodes. Lower nodes with all of them count as nodes of this shape. Empty: all lower nodes of the
    virtual node count."""
    taints: list[Taint] = []
    """Taints that these nodes keep after their start."""
    price: Annotated[float, Meta(ge=0)] = 0.0
    """Price of one node in an hour, in any currency. The cheapest shape that has room for a pod is used first."""
    max_nodes: Annotated[int, Meta(ge=0)] | None = None
    """Maximum number of nodes of this shape, existing ones included. Unset: only the common ``maxNodes`` applies."""


class Autoscaling(ConfigStruct):
    """Nodes that the lower cluster's autoscaler adds for pods that wait."""

    max_nodes: Annotated[int, Meta(ge=0)]
    """Maximum number of nodes with one of the shapes, existing ones included."""
    shapes: list[Shape]
    """Kinds of nodes that the autoscaler can add."""
    provision_seconds: Annotated[float, Meta(gt=0)] = 300.0
    """Seconds within which a new node must be usable. Otherwise its shape is not used for a while, and the pods that
    wait may be moved or rejected."""
    priority: int = 0
    """Among virtual nodes whose new nodes have the same price, the one with the highest priority is used first."""


def problems(where: str, autoscaling: Autoscaling) -> Iterator[str]:
    """Yield the errors that the types do not detect, each as ``field: problem``. ``where`` is the setting's location."""
    if not autoscaling.shapes:
        yield f"{where}.shapes: at least one shape is required"
    seen: set[str] = set()
    for position, shape in enumerate(autoscaling.shapes):
        field = f"{where}.shapes[{position}]"
        if not shape.name or shape.name in seen:
            yield f"{field}.name: {f'{shape.name!r} is there twice' if shape.name else 'required'}"
        seen.add(shape.name)
        for resource in _REQUIRED:
            if resource not in shape.resources:
                yield f"{field}.resources.{resource}: required"
        for resource, text in shape.resources.items():
            if not _is_amount(text):
                yield f"{field}.resources.{resource}: {text!r} is not a positive quantity"
        for taint in shape.taints:
            if taint.effect not in TAINT_EFFECTS:
                yield f"{field}.taints: effect {taint.effect!r} is not one of {', '.join(TAINT_EFFECTS)}"


def resources_of(shape: Shape) -> dict[str, str]:
    """Return what a node of a shape offers, as quantities."""
    return {**_PODS, **shape.resources}


def labels_of(shape: Shape, pool: Mapping[str, str]) -> dict[str, str]:
    """Return the labels by which nodes of a shape are recognized; ``pool``: those of all nodes of the virtual node."""
    return {**shape.labels, **pool}


def matching_shapes(
    autoscaling: Autoscaling, pool: Mapping[str, str], labels: Mapping[str, str]
) -> list[int]:
    """Return the positions of the shapes that a lower node with these labels may have; empty: it has none."""
    if labels.get(names.LABEL_NODE_TYPE) == names.NODE_TYPE_VIRTUAL:
        return []
    return [
        position
        for position, shape in enumerate(autoscaling.shapes)
        if labels_of(shape, pool).items() <= labels.items()
    ]


def left(autoscaling: Autoscaling, total: int, counts: Sequence[int]) -> list[int]:
    """Return by shape how many nodes may be added.

    Args:
        autoscaling: as configured.
        total: number of nodes that exist, or are expected, with any of the shapes.
        counts: the same number by shape.
    """
    common = max(0, autoscaling.max_nodes - total)
    return [
        common if shape.max_nodes is None else max(0, min(common, shape.max_nodes - count))
        for shape, count in zip(autoscaling.shapes, counts, strict=True)
    ]


def most(autoscaling: Autoscaling, existing: Sequence[Sequence[int]]) -> dict[str, int]:
    """Return the most that new nodes can add, per resource, in the units of ``quantity``.

    Each resource is the sum over those nodes that have most of it, so that the sum rejects no pod that one new node could take.

    Args:
        autoscaling: as configured.
        existing: the result of ``matching_shapes`` for each existing node.
    """
    counts = Counter(itertools.chain.from_iterable(existing))
    nodes = sum(map(bool, existing))
    numbers = left(autoscaling, nodes, [counts[position] for position in range(len(autoscaling.shapes))])
    offers = [
        ({name: quantity.of(name, text) for name, text in resources_of(shape).items()}, number)
        for shape, number in zip(autoscaling.shapes, numbers, strict=True)
    ]
    total: dict[str, int] = {}
    for resource in {name for amounts, _ in offers for name in amounts}:
        remaining, found_amount = max(0, autoscaling.max_nodes - nodes), 0
        for amounts, number in sorted(offers, key=lambda offer: -offer[0].get(resource, 0)):
            taken = min(number, remaining)
            remaining -= taken
            found_amount += taken * amounts.get(resource, 0)
        if found_amount:
            total[resource] = found_amount
    return total


def _is_amount(text: str) -> bool:
    try:
        return quantity.milli(text) > 0
    except ValueError:
        return False
