"""All programs read the same file; each ignores the settings of the others, and earlier forms are read, too."""

from __future__ import annotations

import json
from typing import Any

import pytest

import multi_scheduler.config
from clusterset.config import FORMER_KINDS, KIND, ClusterSet
from controller_runtime.errors import ConfigError
from tests.unit.charts.rendering import CASES, objects
from virtual_node.config import file as config_file

PROGRAMS = {"virtual-node": config_file.parse, "virtual-node-multi-scheduler": multi_scheduler.config.parse}
every_program = pytest.mark.parametrize("parse", PROGRAMS.values(), ids=PROGRAMS)

DOCUMENT = """
apiVersion: virtual-node.io/v1alpha1
kind: ClusterSetConfiguration
clusterID: a
kubelet: {nodeIP: 10.0.0.1}
agents: [{name: fit}, {name: load, weight: 2}]
usage: {source: MetricsAPI}
enableControllers: [PVControllers]
clusters:
- name: tokyo
  kubeconfig: tokyo.yaml
  server: https://tokyo
  nodeName: vn-tokyo
  nodeSelector: {pool: a}
  usage: {source: Summary}
- {name: osaka, kubeconfig: osaka.yaml, enableControllers: [ServiceControllers], follow: [ingresses]}
"""


@every_program
def test_every_program_reads_the_same_clusters(parse: Any):
    config: ClusterSet = parse(DOCUMENT)
    tokyo, osaka = config.clusters
    assert (tokyo.server, tokyo.virtual_nodes()[0].name) == ("https://tokyo", "vn-tokyo")
    assert tokyo.virtual_nodes()[0].node_selector == {"pool": "a"}
    assert config.controllers(tokyo) == ["PVControllers"]
    assert config.controllers(osaka) == ["ServiceControllers"]


def test_settings_about_neighbours_of_the_node_are_read_in_both_forms():
    """A cluster with one virtual node has them itself."""
    nodes = (
        "nodes: [{name: a}, {name: b, nodeIP: 10.0.0.2, providerID: x://y, excludeFromLoadBalancers: false}]"
    )
    short, several = (
        config_file.parse(
            DOCUMENT.replace("server: https://tokyo", text)
            .replace("  nodeName: vn-tokyo\n", "")
            .replace("  nodeSelector: {pool: a}\n", "")
        )
        .clusters[0]
        .virtual_nodes()
        for text in ("nodeIP: 10.0.0.2\n  providerID: x://y\n  excludeFromLoadBalancers: false", nodes)
    )
    found = [
        (node.node_ip, node.provider_id, node.exclude_from_load_balancers) for node in (*short, *several)
    ]
    set_, default = ("10.0.0.2", "x://y", False), ("", "", True)
    assert found == [set_, default, set_]


def test_an_address_that_is_none_names_its_field():
    with pytest.raises(ConfigError, match=r"clusters\[0\]\.nodeIP: '10\.0\.0' is not an IP address"):
        config_file.parse(DOCUMENT.replace("server: https://tokyo", "nodeIP: 10.0.0"))


def test_each_program_has_its_own_settings():
    assert config_file.parse(DOCUMENT).kubelet.node_ip == "10.0.0.1"
    assert [one.name for one in multi_scheduler.config.parse(DOCUMENT).agents] == ["fit", "load"]


@every_program
@pytest.mark.parametrize("kind", [KIND, *FORMER_KINDS])
def test_the_kinds_of_earlier_releases_mean_the_same(parse: Any, kind: str):
    parsed = parse(DOCUMENT.replace(KIND, kind))
    assert parsed.clusters == parse(DOCUMENT).clusters


@every_program
def test_tensile_kubes_file_is_read(parse: Any):
    """Its key is the name of the virtual node."""
    entry = {"kube_config": "/k", "kube_master": "https://a", "name": "tokyo"}
    arguments = {"cluster_configuration": {"vn-tokyo": entry}}
    document = {"pluginConfig": [{"name": "multi-scheduler", "args": arguments}]}
    (cluster,) = parse(json.dumps(document)).clusters
    assert (cluster.name, cluster.kubeconfig, cluster.server) == ("tokyo", "/k", "https://a")
    assert [node.name for node in cluster.virtual_nodes()] == ["vn-tokyo"]
    assert cluster.namespaces.adopt is True


_PROFILE = "{{pluginConfig: [{{args: {{cluster_configuration: {{a: {{kube_config: {} }}}}}}}}]}}"


@every_program
def test_tensile_kubes_file_in_the_form_of_newer_kube_schedulers_is_read(parse: Any):
    """The plug-in's arguments are in each profile; the settings of kube-scheduler have no effect."""
    plugin = {"name": "multi-scheduler", "args": {"cluster_configuration": {"vk1": {"kube_config": "/k"}}}}
    document = {
        "apiVersion": "kubescheduler.config.k8s.io/v1beta1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": "/u"},
        "profiles": [
            {"schedulerName": name, "plugins": {"filter": {}}, "pluginConfig": [{"name": "X"}, plugin]}
            for name in ("default-scheduler", "other")
        ],
    }
    (cluster,) = parse(json.dumps(document)).clusters
    assert (cluster.name, cluster.kubeconfig) == ("vk1", "/k")


@every_program
@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("agnets: []", "unknown field `agnets`, did you mean agents?"),
        ("kubelt: {}", "unknown field `kubelt`, did you mean kubelet?"),
        ("clusters: [{name: a, kubeconfg: k}]", "clusters[0]: unknown field `kubeconfg`, did you mean kubeconfig?"),
        ("clusters: [{name: a, clientQps: 1, clientQPS: 2}]", "clusters[0].clientQps: is the same field as clientQPS"),
        ("clusters: [{name: a}]", "clusters[0].kubeconfig: required"),
        ("clusters: [{name: a, kubeconfig: k, enableControllers: [X]}]", "clusters[0].enableControllers: unknown 'X'"),
        (
            "clusters: [{name: a, kubeconfig: k, usage: {source: Prometheus}}]",
            "clusters[0].usage.prometheus: give either service or url",
        ),
        ("clusters: [{name: a, kubeconfig: k, dns: {servers: [x]}}]", "clusters[0].dns.servers[0]: 'x' is not an IP address"),
        ("kind: Pod", "kind: expected ClusterSetConfiguration, got 'Pod'"),
        ("pluginConfig: []", "profiles[].pluginConfig has an entry with args.cluster_configuration"),
        ("pluginConfig: 1", "pluginConfig: expected a list"),
        ("pluginConfig: [null]", "pluginConfig[0]: expected an object"),
        ("pluginConfig: [{args: [a]}]", "profiles[].pluginConfig has an entry with args.cluster_configuration"),
        ("kind: KubeSchedulerConfiguration", "a configuration without it is for kube-scheduler"),
        ("{kind: KubeSchedulerConfiguration, profiles: {}}", "profiles: expected a list"),
        ("{kind: KubeSchedulerConfiguration, profiles: [{pluginConfig: [1]}]}", "profiles[0].pluginConfig[0]: expected an object"),
        (
            "{kind: KubeSchedulerConfiguration, leaderElect: 1}",
            "unknown field `leaderElect` of a KubeSchedulerConfiguration, did you mean leaderElection?",
        ),
        (
            "{kind: KubeSchedulerConfiguration, profiles: [{pluginConfig: [{name: multi-scheduler}]}]}",
            "profiles[0].pluginConfig[0].args.cluster_configuration: expected an object",
        ),
        (
            f"{{kind: KubeSchedulerConfiguration, profiles: [{_PROFILE.format('k')}, {_PROFILE.format('l')}]}}",
            "profiles[1].pluginConfig[0].args.cluster_configuration.a: differs from that of another profile",
        ),
        ("1: 2", "Expected `str`"),
    ],
)  # fmt: skip
def test_errors_are_the_same_in_every_program(parse: Any, document: str, message: str):
    with pytest.raises(ConfigError) as caught:
        parse(document)
    assert message in str(caught.value)


@every_program
def test_former_names_of_fields_are_read(parse: Any):
    """With acronyms in lower case, also in the defaults of ClusterProfiles and in settings of other programs."""
    profiles = "{namespace: fleet, providersFile: f, defaults: {clientQps: 5}}"
    parsed = parse(
        f"kubeApiQps: 7\nclusterProfiles: {profiles}\nclusters: [{{name: a, kubeconfig: k, clientQps: 3}}]"
    )
    assert parsed.clusters[0].client_qps == 3


@every_program
@pytest.mark.parametrize("case", CASES)
def test_every_program_reads_the_files_of_the_chart(parse: Any, case: Any):
    files = [
        text
        for item in objects(case)
        if item["kind"] == "ConfigMap"
        for name, text in item.get("data", {}).items()
        if f"kind: {KIND}" in text or any(f"kind: {kind}" in text for kind in FORMER_KINDS)
    ]
    for text in files:
        if parse is config_file.parse or "clusters: []" not in text or "clusterProfiles" in text:
            parse(text)
