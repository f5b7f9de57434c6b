"""Declared features: what a virtual node declares, and what a pod requires."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterset.model import declared_features
from clusterset.model.declared_features import NOT_GIVEN, WEBSOCKETS, declared, published, required

PAGE = Path(__file__).parents[4] / "docs/operate/upgrade.md"
RESTART_ALL = "RestartAllContainersOnContainerExits"
RESIZE_POD = "InPlacePodLevelResourcesVerticalScaling"


def features(*nodes: tuple[str, ...], version: str = "v1.30.0", before: tuple[str, ...] = ()) -> list[str]:
    return published(map(frozenset, nodes), lower_version=version, before=frozenset(before))


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([(RESTART_ALL, RESIZE_POD)], [RESIZE_POD, RESTART_ALL]),
        ([(RESTART_ALL, RESIZE_POD), (RESIZE_POD,)], [RESIZE_POD]),
        ([(RESTART_ALL,), (RESTART_ALL,), ()], []),
        ([(RESTART_ALL, "FeatureOfLater")], ["FeatureOfLater", RESTART_ALL]),
        ([tuple(NOT_GIVEN)], []),
    ],
    ids=["one node", "a node without one", "an old kubelet", "an unknown one", "those that cannot be given"],
)
def test_a_virtual_node_declares_what_all_lower_nodes_declare(nodes, expected):
    assert features(*nodes) == expected


@pytest.mark.parametrize(
    ("version", "before", "expected"),
    [
        ("v1.37.2", (), [WEBSOCKETS]),
        ("v1.31.0+k3s1", (), [WEBSOCKETS]),
        ("v1.30.9", (WEBSOCKETS,), []),
        ("", (WEBSOCKETS,), [WEBSOCKETS]),
        ("", (), []),
    ],
)
def test_the_lower_api_server_decides_whether_websockets_are_accepted(version, before, expected):
    """Also if no kubelet declares the feature; before the first answer of the lower cluster, nothing changes."""
    assert features((), version=version, before=before) == expected


def test_features_stay_while_there_are_no_lower_nodes():
    """A pod that requires a feature can make an empty cluster grow."""
    assert features(before=(RESTART_ALL, WEBSOCKETS)) == [RESTART_ALL]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["A", "Group/sub"], {"A", "Group/sub"}),
        (["a", "A b", "A/", "A\n", "", "A" * 254, 3, None], set()),
        (None, set()),
        ({"A": 1}, set()),
        ([f"F{number}" for number in range(1000)], {f"F{number}" for number in range(64)}),
    ],
)
def test_reads_only_names_that_the_api_server_accepts(names, expected):
    """One invalid name would make it refuse the whole status of the virtual node."""
    assert declared({"status": {"declaredFeatures": names}}) == expected


def _container(**fields: Any) -> dict[str, Any]:
    return {"name": "c", **fields}


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
@pytest.mark.parametrize(("action", "expected"), [("Restart", []), ("RestartAllContainers", [RESTART_ALL])])
def test_a_rule_that_restarts_all_containers_requires_its_feature(kind, action, expected):
    rules = [{"action": action, "exitCodes": {"operator": "In", "values": [42]}}]
    spec = {"containers": [_container()], kind: [_container(restartPolicyRules=rules)]}
    assert required(spec) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"hostNetwork": True, "hostUsers": False}, ["UserNamespacesHostNetworkSupport"]),
        ({"hostNetwork": True}, []),
        ({"hostUsers": False}, []),
        (
            {"initContainers": [_container(volumeMounts=[{"name": "v", "bindMountOptions": ["noexec"]}])]},
            ["VolumeBindMountOptions"],
        ),
        ({"containers": [_container(volumeMounts=[{"name": "v", "bindMountOptions": []}])]}, []),
    ],
)
def test_a_pod_requires_the_features_of_its_fields(spec, expected):
    assert required(spec) == expected


def test_required_features_are_sorted():
    """They are part of a cache key."""
    assert list(declared_features.REQUIRED) == sorted(declared_features.REQUIRED)


@pytest.mark.parametrize("feature", NOT_GIVEN)
def test_the_documentation_names_features_that_are_not_given(feature):
    assert f"`{feature}`" in PAGE.read_text(encoding="utf-8")
