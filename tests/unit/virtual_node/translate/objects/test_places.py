"""In which lower namespaces objects with our labels are believed to be ours."""

from __future__ import annotations

from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.namespace_map import NamespaceMap
from controller_runtime.objects import Object, from_dict
from virtual_node.translate.objects import namespaces
from virtual_node.translate.objects.namespaces import Places

OURS = "upper-1"


def places(*owned: Object, adopt: bool | list[str] = False, **mapping: Any) -> Places:
    """Return the places of a lower cluster with these namespaces."""
    made = Places(OURS, NamespaceMap(**mapping), adopt)
    for one in owned:
        made.note(one)
    return made


def namespace(name: str, upper_name: str, *, cluster_id: str = OURS) -> Object:
    """Return a lower namespace that was created for an upper one."""
    return from_dict(
        namespaces.lower_namespace(None, name=name, upper_name=upper_name, cluster_id=cluster_id)
    )


def labelled(where: str, upper_namespace: str) -> Object:
    """Return a lower object with all our marks."""
    metadata = {
        "name": "web",
        "namespace": where,
        "labels": {names.LABEL_UPPER_CLUSTER: OURS, names.LABEL_UPPER_UID: "u-1"},
        "annotations": {names.ANNOTATION_UPPER_NAMESPACE: upper_namespace},
    }
    return from_dict({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})


@pytest.mark.parametrize(
    ("made", "where", "upper_namespace", "expected"),
    [
        (places(namespace("shop", "shop")), "shop", "shop", True),
        (places(namespace("shop", "shop")), "lowteam", "shop", False),
        (places(namespace("shop", "shop")), "lowteam", "lowteam", False),
        (places(namespace("shop", "shop")), "shop", "market", False),
        (places(namespace("shop", "shop", cluster_id="upper-2")), "shop", "shop", False),
        (places(namespace("x-shop", "shop"), prefix="x-"), "x-shop", "shop", True),
        # A namespace of an earlier prefix or map.
        (places(namespace("old-shop", "shop"), prefix="x-"), "old-shop", "shop", True),
        (places(adopt=True), "lowteam", "lowteam", True),
        (places(adopt=True), "lowteam", "shop", False),
        (places(adopt=["team-*"]), "lowteam", "lowteam", False),
        (places(adopt=True, prefix="x-"), "lowteam", "lowteam", False),
        (places(adopt=True, prefix="x-"), "x-team", "team", True),
        # A marked namespace belongs to its upper namespace, whatever is adopted.
        (places(namespace("shop", "market"), adopt=True), "shop", "shop", False),
        (places(adopt=True, explicit={"market": "shop"}), "shop", "shop", False),
    ],
)
def test_labels_count_only_where_we_put_objects_of_the_upper_namespace(
    made: Places, where: str, upper_namespace: str, *, expected: bool
):
    """A user of the lower cluster can copy all labels and annotations of an object, but cannot mark a namespace."""
    assert made.is_in_place(labelled(where, upper_namespace)) is expected


def test_a_namespace_of_an_earlier_release_stands_for_the_namespace_that_is_mapped_to_it():
    """It has the label without an upper namespace."""
    metadata = {"name": "x-shop", "labels": {names.LABEL_UPPER_CLUSTER: OURS}}
    made = places(from_dict({"metadata": metadata}), prefix="x-")
    assert made.stands_for("x-shop", "shop")
    assert not made.stands_for("x-shop", "market")


def test_a_namespace_that_loses_its_marks_is_no_place_any_more():
    """Another owner may have created it again."""
    made = places(namespace("shop", "shop"))
    made.note(from_dict({"metadata": {"name": "shop"}}))
    assert not made.stands_for("shop", "shop")


def test_listeners_are_called_once_for_new_marks():
    """Objects that were left out before are then read."""
    made = places()
    heard: list[str] = []
    made.on_new(heard.append)
    for _ in range(2):
        made.note(namespace("shop", "shop"))
    assert heard == ["shop"]


def test_objects_that_our_pods_use_are_ours_in_a_namespace_that_is_no_longer_adopted():
    """The pods are older than a change of the configuration."""
    made = places()
    made.is_used = lambda where, upper_namespace: (where, upper_namespace) == ("shop", "shop")
    assert made.is_in_place(labelled("shop", "shop"))
    assert not made.is_in_place(labelled("shop", "market"))
    assert not made.is_in_place(labelled("lowteam", "shop"))
