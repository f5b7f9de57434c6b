"""Events of lower claims are mirrored to the upper claims."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clusterset.model import names
from controller_runtime.objects import Object, from_dict
from tests import objects
from tests.unit.virtual_node.controllers.events.mirroring import Feed, Mirroring, event
from virtual_node.controllers import events
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.events import MirroredKind
from virtual_node.controllers.volumes.caches import VolumeCaches

pytestmark = pytest.mark.looptime


class _Claims(Mirroring):
    """A mirror of claims; the caches have none at first."""

    def __init__(self, feed: Feed, **namespaces: Any) -> None:
        super().__init__(feed, **namespaces)
        self._above, self._below = [], []

    def _mirrored(self, context: ClusterContext) -> MirroredKind:
        caches = VolumeCaches(context)
        return events.claims(context, lower=caches.lower_claims, upper=caches.upper_claims)


def _claim(uid: str, *, namespace: str = "n", **metadata: Any) -> Object:
    return from_dict(objects.claim(uid=uid, namespace=namespace, metadata=metadata))


def _lower_claim(uid: str, *, namespace: str = "n", upper_uid: str = "above", above: str = "n") -> Object:
    return _claim(
        uid,
        namespace=namespace,
        labels={names.LABEL_UPPER_UID: upper_uid},
        annotations={names.ANNOTATION_UPPER_NAMESPACE: above},
    )


async def test_an_event_of_a_lower_claim_reaches_the_upper_claim():
    """Such as the reason for which a volume is not provisioned; also if it arrives before its claim."""
    feed = Feed()
    mirroring = _Claims(feed, prefix="up-")
    async with mirroring.running():
        assert feed.selected == "involvedObject.kind=PersistentVolumeClaim"
        mirroring.upper.change("ADDED", _claim("above"))
        await feed.send(event("early", pod="data", namespace="up-n"))
        mirroring.lower.change("ADDED", _lower_claim("below", namespace="up-n"))
        await feed.send(event("late", pod="data", namespace="up-n"))
    assert mirroring.sent == ["early", "late"]
    copy = mirroring.recorder.events[0]
    assert copy["involvedObject"] == {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "n", "name": "data", "uid": "above",
        "resourceVersion": "1",
    }  # fmt: skip
    assert copy["metadata"]["labels"] == {names.LABEL_NODE: "vn"}


@pytest.mark.parametrize(
    "lower",
    [
        _lower_claim("below", upper_uid="earlier"),
        _lower_claim("below", namespace="m", above="n"),
        _lower_claim("below", above="m"),
        _claim("below"),
    ],
    ids=["of an earlier claim", "forged in another namespace", "annotation changed", "not ours"],
)
async def test_events_of_other_claims_are_not_mirrored(lower: Object):
    """A lower user may change the marks of the own claims, and write events about them."""
    feed = Feed()
    mirroring = _Claims(feed)
    async with mirroring.running():
        mirroring.upper.change("ADDED", _claim("above"))
        mirroring.lower.change("ADDED", lower)
        await feed.send(event("e", pod="data", namespace=lower.namespace))
        await asyncio.sleep(1)
    assert mirroring.sent == []


@pytest.mark.parametrize(
    ("selected", "node"), [("vn", "vn"), ("real-node", "vn"), (None, "vn")], ids=["ours", "another", "none"]
)
async def test_the_copy_has_the_label_by_which_it_is_found_after_a_restart(selected: str | None, node: str):
    """Every upper user can write the annotation with the selected node."""
    feed = Feed()
    mirroring = _Claims(feed)
    annotations = {} if selected is None else {"volume.kubernetes.io/selected-node": selected}
    async with mirroring.running():
        mirroring.upper.change("ADDED", _claim("above", annotations=annotations))
        mirroring.lower.change("ADDED", _lower_claim("below"))
        await feed.send(event("e", pod="data"))
    assert [copy["metadata"]["labels"] for copy in mirroring.recorder.events] == [{names.LABEL_NODE: node}]
