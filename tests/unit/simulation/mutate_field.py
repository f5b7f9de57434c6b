"""One field of one of our objects is changed by somebody: labels, annotations, owners, finalizers, content, in both clusters.

PYTHONPATH=. python -m tests.unit.simulation.mutate_field           # every mutation, with the process up and down
PYTHONPATH=. python -m tests.unit.simulation.mutate_field 17 up     # the story of one
"""

from __future__ import annotations

import enum
import functools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from controller_runtime.errors import ApiError
from tests.fakes.apiserver.server import Server
from tests.fakes.apiserver.storage import Body
from tests.unit.simulation.script import Outcome, compared, perform
from tests.unit.simulation.world import World

_MUTATED = "mutated"
_METADATA = ("labels", "annotations")
_NOT_OURS = frozenset({"kubernetes.io/metadata.name"})
"""Labels that the API server itself restores."""
_CONTENT: dict[str, dict[str, Any]] = {
    "configmaps": {"data": None},
    "secrets": {"data": None},
    "services": {"spec": {"ports": [{"port": 1, "protocol": "TCP"}], "selector": {"app": _MUTATED}}},
    "endpointslices": {"endpoints": []},
    "pods": {"spec": {"containers": [{"name": "main", "image": _MUTATED}]}},
    "persistentvolumes": {
        "spec": {"capacity": {"storage": "1Mi"}, "persistentVolumeReclaimPolicy": "Retain"}
    },
    "nodes": {"spec": {"taints": None}},
}


@dataclass(frozen=True)
class Mutation:
    """A merge patch of one object."""

    server: str
    plural: str
    key: str
    path: str
    patch: Any

    def __str__(self) -> str:
        return f"{self.server} {self.plural} {self.key} {self.path}"


def mutations(world: World) -> Iterator[Mutation]:
    """Every mutation of the objects that there are: of those that we have made, and of what we write on others."""
    for server in world.servers:
        for plural, bodies in sorted(server.objects.items()):
            if plural == "leases":
                continue
            for key, body in sorted(bodies.items()):
                if world.watchdog.is_ours(body):
                    yield from _of(server, plural, key, body)
                elif server is world.upper and plural in {"pods", "persistentvolumeclaims"}:
                    yield from _marks(server, plural, key, body)


def _of(server: Server, plural: str, key: str, body: Body) -> Iterator[Mutation]:
    make = functools.partial(Mutation, server.name, plural, key)
    for kind in _METADATA:
        for name in sorted({*(body["metadata"].get(kind) or ())} - _NOT_OURS):
            for what, value in (("removed", None), ("changed", _MUTATED)):
                yield make(f"{kind}[{name}] {what}", {"metadata": {kind: {name: value}}})
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "gone"}
    yield make("ownerReferences added", {"metadata": {"ownerReferences": [owner]}})
    if ours := [one for one in body["metadata"].get("finalizers") or () if "virtual-node" in one]:
        yield make(f"finalizers {ours} removed", {"metadata": {"finalizers": None}})
    for field, value in _CONTENT.get(plural, {}).items():
        if field in body:
            changed = value if value is not None else dict.fromkeys(body[field], _MUTATED)
            yield make(f"{field} changed", {field: changed})


def _marks(server: Server, plural: str, key: str, body: Body) -> Iterator[Mutation]:
    """What we write on objects of users."""
    metadata = body["metadata"]
    marks = {name for name in metadata.get("annotations") or () if "virtual-node.io" in name}
    left = [one for one in metadata.get("finalizers") or () if "virtual-node.io" not in one]
    ours = {
        "metadata": {
            **metadata,
            "labels": {},
            "annotations": dict.fromkeys(marks),
            "finalizers": [one for one in metadata.get("finalizers") or () if one not in left],
        }
    }
    for mutation in _of(server, plural, key, ours):
        is_finalizers = mutation.path.startswith("finalizers")
        if "ownerReferences" not in mutation.path:
            patch = {"metadata": {"finalizers": left}} if is_finalizers else mutation.patch
            yield Mutation(server.name, plural, key, mutation.path, patch)


class Allowed(enum.Enum):
    """What may differ in the end from a run without the mutation."""

    NOTHING = enum.auto()
    """The field is restored."""
    STAYS = enum.auto()
    """The field stays as it was changed. Nothing else differs."""
    RECREATED = enum.auto()
    """The object is deleted and created once more: it names another object as the one that it was made for."""
    DELETED_EARLY = enum.auto()
    """The object is deleted before its time."""
    KEPT = enum.auto()
    """The field stays, and the data of the volume is kept: the claim, the volume and the namespace outlive the upper ones."""
    LEFT_ALONE = enum.auto()
    """The object is not ours any more: it is never written to again, and who needs its name reports a conflict."""


_ALLOWED = (
    # Who takes our ownership label off an object other than a pod, takes the object out of our hands. A namespace has
    # a second mark: its label is restored for the next pod.
    (r"namespaces .* labels\[virtual-node.io/upper-cluster\]", Allowed.STAYS),
    (r"^(?!pods).* labels\[virtual-node.io/upper-cluster\]", Allowed.LEFT_ALONE),
    # A claim holds data: one that does not name its upper claim is kept. One that names another gets the volume's claim.
    (r"persistentvolumeclaims .* labels\[virtual-node.io/upper-uid\] removed", Allowed.LEFT_ALONE),
    # An administrator of the upper cluster has changed the reclaim policy of a mirror.
    (r"^persistentvolumes .* spec changed", Allowed.KEPT),
    # Garbage collection in the lower cluster is its own business.
    ("ownerReferences added", Allowed.STAYS),
    # Copies and claims are shared by virtual nodes: the label says only which one made them.
    (
        r"(configmaps|secrets .*/password|persistentvolumeclaims).* labels\[virtual-node.io/node\]",
        Allowed.STAYS,
    ),
    # Admission or an autoscaler in the lower cluster may have set images and resources.
    ("pods .* spec changed", Allowed.STAYS),
    # Labels of users that the lower cluster changes stay so until they change in the upper cluster.
    (r"^pods .* labels\[(?!virtual-node.io/)", Allowed.STAYS),
    # Nobody reads the tokens of a pod that has ended.
    (r"secrets .*/job-0-token-.* labels\[virtual-node.io/token-of\] .* down", Allowed.DELETED_EARLY),
    (
        r"secrets .*/job-0-token-.* (labels\[(?!virtual-node.io/upper-cluster)|annotations|data)",
        Allowed.STAYS,
    ),
    # A process does not know what its predecessor wrote into a token Secret; it renews the tokens in time.
    (
        r"secrets .*-token-.* (labels\[virtual-node.io/upper-uid\]|data|annotations.*expires).* down",
        Allowed.STAYS,
    ),
    (r"secrets .*-token-.* labels\[virtual-node.io/token-of\] .* down", Allowed.RECREATED),
    (r"services .* labels\[virtual-node.io/upper-uid\] changed", Allowed.RECREATED),
    (
        r"(services|endpointslices) .* annotations\[virtual-node.io/upper-namespace\] changed",
        Allowed.RECREATED,
    ),
    (r"endpointslices .*/(?!kubernetes-)\S+ labels\[kubernetes.io/service-name\]", Allowed.RECREATED),
    # Without its label it counts as a copy without an upper object, until it is restored.
    (r"(services|endpointslices) .* labels\[virtual-node.io/api-server\] removed", Allowed.RECREATED),
    (r"configmaps .* annotations\[virtual-node.io/source\] removed down", Allowed.RECREATED),
)
"""Patterns of mutations (resource, key, path, whether the process is up or down), and what is allowed after them."""
_KEPT = re.compile(r"outlived|persistentVolumeReclaimPolicy|(persistentvolume(claim)?s|namespaces) \S+: ")
"""Differences where a claim and its volume are kept."""
_OF_NEW_ONES = ("metadata.uid", "spec.clusterIP", "spec.containers")
"""Fields that differ where an object was created once more."""


def allowance(mutation: Mutation, *, is_up: bool) -> Allowed:
    """What may differ after a mutation."""
    what = f"{mutation.plural} {mutation.key} {mutation.path} {'up' if is_up else 'down'}"
    return next((allowed for pattern, allowed in _ALLOWED if re.search(pattern, what)), Allowed.NOTHING)


@functools.cache
def without_mutation() -> tuple[Outcome, tuple[Mutation, ...]]:
    """How the script ends without a mutation, and which there can be."""
    found: list[Mutation] = []

    def look(world: World, phase: str) -> bool:
        if phase == "create":
            found.extend(mutations(world))
        return False

    outcome = perform(between=look)
    return outcome, tuple(found)


def run(mutation: Mutation, *, is_up: bool) -> Outcome:
    """Play the script with a mutation after the first phase, with the process running or killed for two seconds."""

    def mutate(world: World, phase: str) -> bool:
        if phase != "create":
            return False
        [server] = [one for one in world.servers if one.name == mutation.server]
        if not is_up:
            world.crash("a", restart_after=2.0)
        try:
            server.patch(mutation.plural, mutation.key, mutation.patch, who="stranger")
        except ApiError as error:
            world.note(f"refused: {error}")
        return True

    return perform(between=mutate)


def wrong_after(mutation: Mutation, *, is_up: bool) -> list[str]:
    """What is wrong after a mutation, but for what is allowed after it; empty: nothing is."""
    allowed = allowance(mutation, is_up=is_up)
    outcome = run(mutation, is_up=is_up)
    what = f"{mutation.server} {mutation.plural} {mutation.key}"
    if allowed is Allowed.LEFT_ALONE:
        wrong = [one for one in outcome.story.wrong if "outlived" not in one and "by nobody" not in one]
        changes = [one.partition(" ")[2] for one in outcome.story.changes]
        begun = changes.index(f"{mutation.server} stranger patch {mutation.plural} {mutation.key}")
        ours = re.compile(rf"{mutation.server} vn:.* {mutation.plural} {re.escape(mutation.key)}")
        wrong += [f"written to: {one}" for one in changes[begun:] if ours.fullmatch(one)]
    elif allowed is Allowed.RECREATED:
        found = compared(outcome, without_mutation()[0], once_more=what)
        wrong = [one for one in found if not one.partition(": ")[2].partition(": ")[0].endswith(_OF_NEW_ONES)]
    else:
        wrong = compared(outcome, without_mutation()[0])
    if allowed is Allowed.DELETED_EARLY:
        wrong = [one for one in wrong if f"{what}: None instead of" not in one]
    if allowed is Allowed.KEPT:
        wrong = [one for one in wrong if not _KEPT.search(one)]
    if allowed is Allowed.STAYS:
        wrong = [one for one in wrong if what not in one or not _is_about(mutation, one)]
    return outcome.told(f"{mutation} {'up' if is_up else 'down'} ({allowed.name})", wrong)


def _is_about(mutation: Mutation, difference: str) -> bool:
    [(field, content)] = mutation.patch.items()
    if field == "metadata":
        [field] = content
    return f".{field}" in difference


def _main(numbers: list[int], variants: list[bool]) -> None:
    for number, mutation in enumerate(without_mutation()[1]):
        for is_up in variants:
            if numbers and number not in numbers:
                continue
            if numbers:
                print(*run(mutation, is_up=is_up).story.changes, sep="\n")  # noqa: T201
            if wrong := wrong_after(mutation, is_up=is_up):
                print(f"{number}", *wrong, sep="\n    ", flush=True)  # noqa: T201


if __name__ == "__main__":
    chosen = [text == "up" for text in sys.argv[1:] if text in {"up", "down"}]
    _main([int(text) for text in sys.argv[1:] if text.isdigit()], chosen or [True, False])
