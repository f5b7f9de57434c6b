"""The command line keeps tensile-kube's flags and environment, and says clearly what is wrong."""

from __future__ import annotations

import pytest

from clusterset.model.autoscaling import Taint
from controller_runtime.errors import ConfigError
from virtual_node.config import command_line

MINIMAL = ["--client-kubeconfig", "/lower.yaml"]


def parse(*arguments: str, **environment: str) -> command_line.DaemonSettings:
    """Parse flags, with the required one added."""
    return command_line.PROGRAM.parse([*MINIMAL, *arguments], environment)


def test_defaults_are_those_of_tensile_kube():
    """Without further flags the node, QPS, labels and controllers are tensile-kube's."""
    config = parse().config
    cluster = config.clusters[0]
    node = cluster.virtual_nodes()[0]
    assert (node.name, cluster.client_qps, cluster.client_burst) == ("virtual-kubelet", 500, 1000)
    assert config.enable_controllers == ["PVControllers", "ServiceControllers"]
    assert config.ignore_labels == ["group.batch.scheduler.tencent.com"]
    assert config.enable_serviceaccount is True
    assert node.taints == [Taint(key="virtual-kubelet.io/provider", value="k8s", effect="NoSchedule")]
    assert config.kubelet.port == 10250


def test_a_tensile_kube_manifest_parses_unchanged():
    """The flags and variables of tensile-kube's own manifest."""
    options = parse(
        "--nodename=vn-a",
        "--provider=k8s",
        "--kubeconfig=/upper.yaml",
        "--client-qps=700",
        "--client-burst",
        "1500",
        "--kube-api-qps=300",
        "--kube-api-burst=600",
        "--enable-controllers=PVControllers",
        "--enable-serviceaccount=false",
        "--ignore-labels=a.b/c,d.e/f",
        "--log-level=debug",
        "--klog.v=4",
        "--klog.logtostderr",
        "--disable-taint=true",
        KUBELET_PORT="10350",
        APISERVER_CERT_LOCATION="/crt.pem",
        APISERVER_KEY_LOCATION="/key.pem",
        APISERVER_CA_CERT_LOCATION="/ca.pem",
        VKUBELET_POD_IP="10.1.2.3",
        VKUBELET_EXTERNAL_POD_IP="1.2.3.4",
        VKUBELET_NODE_LABEL="zone: east",
    )
    config = options.config
    cluster, kubelet = config.clusters[0], config.kubelet
    assert (cluster.client_qps, cluster.client_burst) == (700, 1500)
    assert (config.kube_api_qps, config.kube_api_burst) == (300, 600)
    assert config.enable_controllers == ["PVControllers"]
    assert config.enable_serviceaccount is False
    assert config.ignore_labels == ["a.b/c", "d.e/f"]
    assert (options.log_level, options.klog.verbosity) == ("debug", 4)
    assert cluster.virtual_nodes()[0].taints == []
    assert cluster.labels == {"zone": "east"}
    assert (kubelet.port, kubelet.node_ip, kubelet.external_ip) == (10350, "10.1.2.3", "1.2.3.4")
    assert (kubelet.tls_cert_file, kubelet.tls_private_key_file) == ("/crt.pem", "/key.pem")
    assert kubelet.client_ca_file == "/ca.pem"


def test_taint_comes_from_the_environment():
    """VKUBELET_TAINT_* replace the default taint."""
    config = parse(
        VKUBELET_TAINT_KEY="role", VKUBELET_TAINT_VALUE="vk", VKUBELET_TAINT_EFFECT="NoExecute"
    ).config
    assert config.clusters[0].taints == [Taint(key="role", value="vk", effect="NoExecute")]


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--provider=aws"], {}, "--provider aws"),
        (["--client-qps=0"], {}, "--client-qps"),
        (["--klog.v=much"], {}, "--klog.v"),
        ([], {"KUBELET_PORT": "http"}, "KUBELET_PORT: 'http'"),
        ([], {"KUBELET_PORT": "70000"}, "KUBELET_PORT"),
        ([], {"VKUBELET_TAINT_EFFECT": "Never"}, "VKUBELET_TAINT_EFFECT"),
        (["--nodename=No_Good"], {}, "node name 'No_Good'"),
        ([], {"APISERVER_CERT_LOCATION": "/only-cert"}, "tlsCertFile and tlsPrivateKeyFile"),
    ],
)
def test_bad_values_name_their_flag(arguments, environment, message):
    """Or variable."""
    with pytest.raises(ConfigError, match=message):
        command_line.PROGRAM.parse([*MINIMAL, *arguments], environment)


def test_lower_kubeconfig_is_required():
    """tensile-kube panics here."""
    with pytest.raises(ConfigError, match="--client-kubeconfig: required"):
        command_line.PROGRAM.parse([], {})


def test_adopted_namespaces_are_a_list_of_patterns():
    """None by default; a file has a setting of its own."""
    assert parse().config.clusters[0].namespaces.adopt == []
    adopting = parse("--adopt-namespaces=default,team-*").config.clusters[0].namespaces
    assert adopting.adopt == ["default", "team-*"]


def test_the_preset_of_the_policy_is_a_flag():
    """The default is the policy's own; a file has a setting of its own."""
    assert parse().config.clusters[0].policy.preset is None
    assert parse("--policy-preset=privileged").config.clusters[0].policy.preset == "privileged"


def test_unknown_controller_and_bad_label_warn():
    """They are skipped as in tensile-kube, but not silently."""
    options = parse("--enable-controllers=PVControllers,Foo", VKUBELET_NODE_LABEL="a:b:c")
    assert options.config.enable_controllers == ["PVControllers"]
    assert len(options.warnings) == 2


@pytest.mark.parametrize(
    "flag",
    [
        "--provider-config=/etc/provider.json",
        "--authentication-token-webhook-cache-ttl=2m",
        "--authorization-webhook-cache-authorized-ttl=5m0s",
        "--authorization-webhook-cache-unauthorized-ttl=30s",
    ],
)
def test_flags_of_tensile_kube_without_effect_give_a_warning(flag):
    """A manifest with them starts, and the log names the effective value; others give no warning."""
    options = parse(flag)
    assert [warning.partition(" has no effect: ")[0] for warning in options.warnings] == [
        flag.partition("=")[0]
    ]
    assert options.config == parse().config
    assert parse().warnings == ()


_FILE = """
apiVersion: virtual-node.io/v1alpha1
kind: VirtualNodeConfiguration
kubeconfig: /file
server: https://file
kubeApiQps: 7
kubernetesService: Upper
enableControllers: [PVControllers]
fullResyncPeriod: 7
metricsAddress: :7
leaderElection: {enabled: true, name: file}
kubelet: {port: 7, clientCaFile: /file, servingCertificate: CSR, approveServingCertificate: true, anonymousAuth: true}
clusters: [{name: a, kubeconfig: /k, clientQps: 7, nodeName: vn-file}]
"""


@pytest.mark.parametrize(
    ("arguments", "environment", "read", "expected"),
    [
        ([], {}, lambda config: config.kubeconfig, "/file"),
        (["--kubeconfig=/flag"], {}, lambda config: config.kubeconfig, "/flag"),
        (["--kubeconfig="], {}, lambda config: config.kubeconfig, ""),
        ([], {"MASTER_URI": "https://env"}, lambda config: config.server, "https://env"),
        ([], {}, lambda config: config.kube_api_qps, 7),
        (["--kube-api-qps=500"], {}, lambda config: config.kube_api_qps, 500),
        (["--kube-api-qps=0"], {}, lambda config: config.kube_api_qps, 7),
        (["--kubernetes-service=lower"], {}, lambda config: config.kubernetes_service, "Lower"),
        ([], {}, lambda config: config.enable_controllers, ["PVControllers"]),
        (["--enable-controllers="], {}, lambda config: config.enable_controllers, []),
        (["--full-resync-period=10m"], {}, lambda config: config.full_resync_period, 600),
        (["--ping-interval=1m"], {}, lambda config: config.ping_interval, 60),
        (["--metrics-addr=:8"], {}, lambda config: config.metrics_address, ":8"),
        (["--metrics-addr="], {}, lambda config: config.metrics_address, ""),
        ([], {}, lambda config: config.leader_election.enabled, True),
        (["--leader-elect=false"], {}, lambda config: config.leader_election.enabled, False),
        ([], {}, lambda config: config.leader_election.mode, "Standby"),
        (["--workers=2"], {}, lambda config: config.leader_election.mode, "Sharded"),
        (["--workers=1"], {}, lambda config: config.leader_election.mode, "Standby"),
        (["--leader-elect-resource-name=flag"], {}, lambda config: config.leader_election.name, "flag"),
        ([], {"KUBELET_PORT": "8"}, lambda config: config.kubelet.port, 8),
        ([], {"KUBELET_PORT": ""}, lambda config: config.kubelet.port, 7),
        ([], {"APISERVER_CA_CERT_LOCATION": "/env"}, lambda config: config.kubelet.client_ca_file, "/env"),
        (
            ["--client-verify-ca=/flag"],
            {"APISERVER_CA_CERT_LOCATION": "/env"},
            lambda config: config.kubelet.client_ca_file,
            "/flag",
        ),
        ([], {}, lambda config: config.kubelet.certificate_source, "CSR"),
        (["--no-verify-clients=false"], {}, lambda config: config.kubelet.anonymous_auth, False),
        (
            ["--rotate-server-certificates=false", "--approve-server-certificates=false"],
            {},
            lambda config: (config.kubelet.certificate_source, config.kubelet.approve_serving_certificate),
            ("SelfSigned", False),
        ),
        ([], {"DEFAULT_NODE_NAME": "env"}, lambda config: config.clusters[0].node_name, "vn-file"),
    ],
)
def test_a_flag_overrides_the_environment_and_that_overrides_the_file(
    tmp_path, arguments, environment, read, expected
):
    """Given flags override, also with their default value, false or empty; empty variables do not."""
    file = tmp_path / "config.yaml"
    file.write_text(_FILE)
    options = command_line.PROGRAM.parse([f"--config={file}", *arguments], environment)
    assert read(options.config) == expected
    assert options.warnings == ()


def test_flags_of_one_lower_cluster_warn_beside_a_file(tmp_path):
    """They have no effect there, and the warning names the field."""
    file = tmp_path / "config.yaml"
    file.write_text(_FILE)
    options = command_line.PROGRAM.parse([f"--config={file}", "--client-qps=500", "--disable-taint"], {})
    assert options.config.clusters[0].client_qps == 7
    assert options.warnings == (
        "--client-qps has no effect beside --config; set clusters[].clientQPS",
        "--disable-taint has no effect beside --config; set clusters[].taints",
    )


def test_waits_for_a_configuration_only_with_a_file(tmp_path):
    """Flags that describe the only lower cluster cannot change."""
    file = tmp_path / "config.yaml"
    file.write_text(_FILE)
    assert command_line.PROGRAM.parse([f"--config={file}", "--wait-for-config"], {}).waits
    assert not parse("--wait-for-config").waits
