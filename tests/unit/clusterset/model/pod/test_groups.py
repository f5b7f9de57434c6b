"""Which pods form a group, by what tenants and controllers write on them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterset.model.pod.groups import MOST_MEMBERS, Group, group_of

OURS = {"virtual-node.io/pod-group": "train", "virtual-node.io/min-members": "8"}
PLUGINS = {"scheduling.x-k8s.io/pod-group": "train"}
LWS = {"leaderworkerset.sigs.k8s.io/name": "llm", "leaderworkerset.sigs.k8s.io/group-index": "2"}
LWS_SIZE = {"leaderworkerset.sigs.k8s.io/size": "4"}
JOBS = {
    "jobset.sigs.k8s.io/jobset-name": "train",
    "jobset.sigs.k8s.io/replicatedjob-name": "workers",
    "jobset.sigs.k8s.io/replicatedjob-replicas": "4",
}
ONE_JOB = JOBS | {"jobset.sigs.k8s.io/replicatedjob-replicas": "1"}
MINIMUM = {"virtual-node.io/min-members": "16"}


@pytest.mark.parametrize(
    ("labels", "annotations", "expected"),
    [
        ({}, {}, None),
        ({}, MINIMUM, None),
        ({}, OURS, ("annotation", "train", 8)),
        (PLUGINS, {}, ("PodGroup", "train", 0)),
        (PLUGINS, MINIMUM, ("PodGroup", "train", 16)),
        (PLUGINS, OURS, ("annotation", "train", 8)),
        (PLUGINS, {"virtual-node.io/pod-group": ""}, None),
        (LWS, LWS_SIZE, ("LeaderWorkerSet", "llm-2", 4)),
        (LWS, {}, None),
        (LWS, {"leaderworkerset.sigs.k8s.io/size": "1"}, None),
        (LWS, LWS_SIZE | {"leaderworkerset.sigs.k8s.io/exclusive-topology": "rack"}, None),
        (JOBS, {}, ("JobSet", "train/workers", 4)),
        (JOBS, MINIMUM, ("JobSet", "train/workers", 16)),
        (ONE_JOB, {}, None),
        (ONE_JOB, MINIMUM, ("JobSet", "train/workers", 16)),
    ],
)
def test_group_of_a_pod(labels, annotations, expected):
    found = group_of("shop", labels, annotations)
    assert (found and (found.source, found.name, found.minimum)) == expected
    assert found is None or (not found.problem and found.is_one_cluster)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"virtual-node.io/min-members": "many"}, "not a number from 1 to 1000"),
        ({"virtual-node.io/min-members": "1001"}, "not a number from 1 to 1000"),
        ({"virtual-node.io/min-members": "٣"}, "not a number from 1 to 1000"),
        ({"virtual-node.io/scope": "zone"}, "neither cluster nor any"),
        ({"virtual-node.io/pod-group": "g" * 254}, "more than 253 characters"),
        ({"virtual-node.io/pod-group-topology": "k" * 318}, "longer than a label key"),
    ],
)
def test_unusable_declaration_is_reported(changed, problem):
    """The scheduler's event shows it, so the pod does not start alone by mistake."""
    found = group_of("shop", {}, OURS | changed)
    assert found is not None
    assert problem in found.problem
    assert len(str(found)) <= len("shop/") + 253


def test_missing_minimum_is_reported():
    found = group_of("shop", {}, {"virtual-node.io/pod-group": "train"})
    assert found is not None
    assert "min-members is missing" in found.problem


def test_topology_implies_one_cluster():
    scope = {"virtual-node.io/scope": "any"}
    assert group_of("shop", {}, OURS | scope) == Group("shop", "annotation", "train", 8, is_one_cluster=False)
    found = group_of("shop", {}, OURS | scope | {"virtual-node.io/pod-group-topology": "zone"})
    assert found is not None
    assert found.is_one_cluster


_texts = st.sampled_from(["", "1", "8", "-1", "9" * 30, "a/b", "train", "é"])


@given(
    st.dictionaries(st.sampled_from([*PLUGINS, *LWS, *JOBS]), _texts),
    st.dictionaries(st.sampled_from([*OURS, *LWS_SIZE, *JOBS, "virtual-node.io/scope"]), _texts),
)
def test_any_text_gives_a_bounded_group_in_its_namespace(labels, annotations):
    found = group_of("shop", labels, annotations)
    if found is not None:
        assert found.key.startswith("shop/")
        assert found.problem or 0 <= found.minimum <= MOST_MEMBERS
