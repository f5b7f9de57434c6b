"""Two files of earlier releases that describe a lower cluster differently: every difference is reported with its field."""

from __future__ import annotations

import pytest

from clusterset import validation
from clusterset.comparing import Difference, differences
from clusterset.config import ClusterSet
from clusterset.reading import ConfigFile

_FILE = ConfigFile(ClusterSet, validation.problems)
_PROFILES = "clusterProfiles: {namespace: fleet, providersFile: a%s}"


def of_tokyo(settings: str, top: str = "") -> ClusterSet:
    """Return a configuration with one lower cluster."""
    return _FILE.parse(f"{top}\nclusters: [{{name: tokyo, kubeconfig: k, {settings}}}]")


@pytest.mark.parametrize(
    ("one", "other", "field", "values"),
    [
        ("podSelector: {matchLabels: {a: b}}", "", "podSelector.matchLabels", ('{"a":"b"}', "unset")),
        ("policy: {hostPorts: true}", "policy: {hostPorts: false}", "policy.hostPorts", ("true", "false")),
        ("namespaces: {prefix: a-}", "", "namespaces.prefix", ('"a-"', "unset")),
        ("volumes: {allowedHostPaths: [/a]}", "", "volumes.allowedHostPaths", ('["/a"]', "[]")),
        ("enableControllers: []", "", "enableControllers", ("[]", '["PVControllers","ServiceControllers"]')),
        ("nodes: [{name: a, nodeSelector: {x: y}}]", "nodes: [{name: a}]", "nodes.a.nodeSelector.x", ('"y"', "unset")),
        ("nodeSelector: {x: y}", "", "nodes.nodeName.nodeSelector.x", ('"y"', "unset")),
        ("resourceClaims: {enabled: true}", "", "resourceClaims.enabled", ("true", "false")),
        ("overrides: [{name: a}]", "", "overrides", ('[{"name":"a","patch":{"metadata":{},"spec":{}}}]', "[]")),
    ],
)  # fmt: skip
def test_a_difference_is_reported_with_its_field(one: str, other: str, field: str, values: tuple[str, str]):
    (found,) = differences(of_tokyo(one), of_tokyo(other))
    assert found == Difference("tokyo", field, *values)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("labels: {a: b}", "cacheBytes: 0"),
        ("nodeName: vn-tokyo", ""),
        ("nodeName: vn-tokyo", "nodes: [{name: vn-tokyo}]"),
        ("namespaces: {remove: false, generated: [secrets/a]}", "usage: {source: Summary}"),
        ("clientQps: 1", "server: https://a"),
    ],
)
def test_settings_of_one_program_do_not_differ(one: str, other: str):
    assert list(differences(of_tokyo(one), of_tokyo(other))) == []


def test_controllers_of_all_clusters_count_as_those_of_a_cluster():
    whole = of_tokyo("", "enableControllers: [PVControllers]")
    assert list(differences(whole, of_tokyo("enableControllers: [PVControllers]"))) == []


def test_a_cluster_that_only_one_file_has_is_reported():
    both = _FILE.parse("clusters: [{name: tokyo, kubeconfig: k}, {name: osaka, kubeconfig: o}]")
    assert list(differences(both, of_tokyo(""))) == [Difference("osaka", "name", "there", "missing")]


def test_cluster_profiles_are_compared():
    one, other = (
        _FILE.parse(_PROFILES % more)
        for more in (", defaults: {policy: {hostPorts: true}}", ", namePrefix: b-")
    )
    assert list(differences(one, other)) == [
        Difference("", "clusterProfiles.namePrefix", "unset", '"b-"'),
        Difference("", "clusterProfiles.defaults.policy.hostPorts", "true", "unset"),
    ]
    assert list(differences(one, ClusterSet())) == [Difference("", "clusterProfiles", "there", "missing")]
