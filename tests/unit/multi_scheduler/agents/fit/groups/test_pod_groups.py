"""scheduler-plugins' PodGroup objects give the minimum of their groups, where this API is installed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterset.model.pod.groups import Group
from controller_runtime.client.limits import CacheBudget
from controller_runtime.objects import from_dict
from multi_scheduler.agents.fit.members import PodGroups

BY_LABEL = Group("shop", "PodGroup", "train")


def _installed(*, min_member: Any = None) -> PodGroups:
    client: Any = SimpleNamespace(cluster="test", caches=CacheBudget(0, cluster="test"))
    found = PodGroups(client)
    found.informer._synced.set()
    if min_member is not None:
        metadata = {"name": "train", "namespace": "shop", "resourceVersion": "1"}
        found.informer.change("ADDED", from_dict({"metadata": metadata, "spec": {"minMember": min_member}}))
    return found


def test_label_has_no_effect_without_the_api():
    """A label that another cluster's tools left must not keep a pod from starting."""
    client: Any = SimpleNamespace(cluster="test", caches=CacheBudget(0, cluster="test"))
    assert PodGroups(client).resolve(BY_LABEL) is None


def test_minimum_of_the_pod_precedes_the_object():
    own = Group("shop", "PodGroup", "train", 4)
    assert _installed(min_member=8).resolve(own) == own


@pytest.mark.parametrize(
    ("min_member", "minimum", "problem"),
    [
        (8, 8, ""),
        (None, 0, "its PodGroup does not exist"),
        (0, 0, "minMember of its PodGroup is not a number from 1 to 1000"),
        ("8", 0, "minMember of its PodGroup is not a number from 1 to 1000"),
    ],
)
def test_minimum_of_the_object(min_member, minimum, problem):
    found = _installed(min_member=min_member).resolve(BY_LABEL)
    assert found is not None
    assert (found.minimum, found.problem) == (minimum, problem)
