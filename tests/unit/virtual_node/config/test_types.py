"""The YAML configuration is strict, and every error names its field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from clusterset.config import Cluster
from controller_runtime.errors import ConfigError
from virtual_node.config import file as config_file
from virtual_node.config.types import Config

HEAD = "apiVersion: virtual-node.io/v1alpha1\nkind: ClusterSetConfiguration\n"


def test_one_cluster_in_short_form_is_one_virtual_node():
    """Node fields beside a cluster's name describe its only virtual node."""
    parsed = config_file.parse(
        HEAD + "clusters: [{name: tokyo, kubeconfig: t.yaml, labels: {a: b}, port: 0}]"
    )
    (node,) = parsed.clusters[0].virtual_nodes()
    assert (node.name, node.labels, node.port, node.taints) == ("tokyo", {"a": "b"}, 0, None)


def test_a_cluster_may_have_several_virtual_nodes():
    """Each entry of nodes is a virtual node with its own selector and reserve."""
    parsed = config_file.parse(
        HEAD
        + """
clusters:
- name: paris
  kubeconfig: p.yaml
  nodes:
  - {name: cpu, nodeSelector: {pool: cpu}}
  - {name: gpu, nodeSelector: {pool: gpu}, capacity: {reserve: {cpu: "10%", memory: 1Gi}}, taints: []}
"""
    )
    cpu, gpu = parsed.clusters[0].virtual_nodes()
    assert cpu.node_selector == {"pool": "cpu"}
    assert gpu.capacity.reserve == {"cpu": "10%", "memory": "1Gi"}
    assert gpu.taints == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "clusters: [{name: a, kubeconfg: x}]",
            r"clusters\[0\]: unknown field `kubeconfg`, did you mean kubeconfig\?",
        ),
        ("kubelet: {port: high}", r"kubelet.port: Expected `int`, got `str`"),
        ("clusters: [{name: a}]", r"clusters\[0\].kubeconfig: required"),
        ("clusters: [{name: a, kubeconfig: x}, {name: a, kubeconfig: y}]", "'a' is there twice"),
        ("clusters: [{name: a, kubeconfig: x, nodeName: A_B}]", "DNS-1123"),
        ("clusters: [{name: a, kubeconfig: x, taints: [{key: k, effect: Maybe}]}]", "effect 'Maybe'"),
        ("clusters: [{name: a, kubeconfig: x, capacity: {reserve: {cpu: lots}}}]", "reserve.cpu"),
        (
            "clusters: [{name: a, kubeconfig: x, labels: {b: c}, nodes: [{name: n}]}]",
            r"clusters\[0\].labels: has no effect beside nodes",
        ),
        (
            "clusters: [{name: a, kubeconfig: x, autoscaling: {maxNodes: 1, shapes: []}, nodes: [{name: n}]}]",
            r"clusters\[0\].autoscaling: has no effect beside nodes",
        ),
        (
            "clusters: [{name: a, kubeconfig: x, autoscaling: {maxNodes: 1, shapes: []}}]",
            r"clusters\[0\].autoscaling.shapes: at least one shape is required",
        ),
        (
            "clusters: [{name: a, kubeconfig: x, ingressClasses: {a: b}}]",
            r"clusters\[0\].ingressClasses: has no effect without ingresses in follow",
        ),
        (
            "clusters: [{name: a, kubeconfig: x, follow: [gateways], gatewayClasses: {a: ''}}]",
            r"clusters\[0\].gatewayClasses: a class has no name",
        ),
        (
            "enableControllers: []\nclusterProfiles: {namespace: a, providersFile: b, defaults: {follow: [ingresses]}}",
            r"clusterProfiles.defaults.follow: ingresses needs ServiceControllers",
        ),
        ("enableControllers: [Foo]", "enableControllers: unknown 'Foo'"),
        ("pingTimeout: 0", "pingTimeout"),
        ("kubernetesServiceURL: 'http://12[[7.0.0.1:1'", "kubernetesServiceURL: .* is not a URL"),
        (f"clusters: [{'{name: a},' * 501}]", "clusters: 501 are too many for one process; at most 500"),
        (f"clusters: [{'{name: a},' * 50}]", "and [0-9]+ more$"),
        ("kind: Pod", "kind: expected ClusterSetConfiguration"),
    ],
)
def test_mistakes_name_their_field(text, message):
    """The message also has the valid values."""
    document = text if text.startswith("kind") else HEAD + text
    with pytest.raises(ConfigError, match=message):
        config_file.parse(document, source="c.yaml")


def test_invalid_yaml_is_one_line():
    with pytest.raises(ConfigError) as caught:
        config_file.parse("a: [", source="c.yaml")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("c.yaml: not YAML")


def test_kubeconfig_paths_are_relative_to_the_file(tmp_path):
    """A configuration and its kubeconfigs move together."""
    file = tmp_path / "clusters.yaml"
    file.write_text(HEAD + "kubeconfig: up.yaml\nclusters: [{name: a, kubeconfig: low.yaml}]")
    loaded = config_file.load(file)
    assert loaded.kubeconfig == str(tmp_path / "up.yaml")
    assert loaded.clusters[0].kubeconfig == str(tmp_path / "low.yaml")


def test_an_unreadable_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.yaml"):
        config_file.load(tmp_path / "missing.yaml")


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ("clustres: []", "unknown field `clustres`, did you mean clusters?"),
        (
            "clusters: [{name: a, kubeconfig: k, nodename: x}]",
            "clusters[0]: unknown field `nodename`, did you mean nodeName?",
        ),
        ("zzz: 1", "unknown field `zzz`"),
    ],
)
def test_a_misspelt_field_gets_a_suggestion(field: str, told: str):
    """The message also has the field's position."""
    with pytest.raises(ConfigError) as caught:
        config_file.parse(HEAD + field)
    assert str(caught.value).endswith(told)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("{name: a, lables: {a: b}, nodeName: x}", {"name": "a", "nodeName": "x"}),
        ("{name: a, clientQPS: fast, port: 1}", {"name": "a", "port": 1}),
        ("{name: a, labels: {a: b, c: 1}, context: c}", {"name": "a", "context": "c"}),
        ("{name: a, nodes: [{name: n, port: x}, {labels: {}}, {name: m}]}", {"name": "a", "nodes": [{"name": "n"}, {"name": "m"}]}),
        ("{name: a, labels: {1: b, c: d}, taints: [{key: a, effect: 1}]}", {"name": "a", "labels": {"c": "d"}, "taints": [{"key": "a"}]}),
        ("{name: a, 1: 2, policy: {hostPorts: true, namespaces: {x: {hostPort: true}}}}", {"name": "a", "policy": {"hostPorts": True}}),
    ],
)  # fmt: skip
def test_the_valid_part_of_a_rejected_file_is_kept(tmp_path: Path, text: str, kept: dict[str, Any]):
    """Only unknown fields and wrong types are left out."""
    file = tmp_path / "c.yaml"
    file.write_text(f"{HEAD}\nclusters: [{text}, {{name: b}}]\nclustres: 1\n", encoding="utf-8")
    wanted = [msgspec.convert(one, Cluster) for one in (kept, {"name": "b"})]
    assert config_file.load_usable(file).clusters == wanted


@pytest.mark.parametrize("text", ["", "[", "- a", "clusters: b", "{1: 2}", "\0", "{'a`b': 1}"])
def test_an_unusable_file_gives_the_defaults(tmp_path: Path, text: str):
    """A missing file also gives the defaults."""
    file = tmp_path / "c.yaml"
    assert config_file.load_usable(file) == Config()
    file.write_text(text, encoding="utf-8")
    assert config_file.load_usable(file) == Config()
