"""Source of serving certificates: configuration, flags, and the necessary rights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from clusterset.config import API_VERSION, KIND, NodeConfig
from controller_runtime.errors import ConfigError
from virtual_node.config import command_line
from virtual_node.config import file as config_file
from virtual_node.rights import daemon, manifests


@pytest.mark.parametrize(
    ("kubelet", "source"),
    [
        ({}, "SelfSigned"),
        ({"tlsCertFile": "/c", "tlsPrivateKeyFile": "/k"}, "Files"),
        ({"servingCertificate": "Files", "tlsCertFile": "/c", "tlsPrivateKeyFile": "/k"}, "Files"),
        ({"servingCertificate": "SelfSigned"}, "SelfSigned"),
        ({"servingCertificate": "CSR", "approveServingCertificate": True}, "CSR"),
    ],
)
def test_source_of_the_certificate(kubelet, source):
    """Given files are used; otherwise it is self-signed, unless the configuration selects CSR."""
    assert config_file.parse(_document(kubelet)).kubelet.certificate_source == source


@pytest.mark.parametrize(
    ("kubelet", "message"),
    [
        ({"servingCertificate": "Files"}, "kubelet.servingCertificate: Files needs tlsCertFile"),
        (
            {"servingCertificate": "CSR", "tlsCertFile": "/c", "tlsPrivateKeyFile": "/k"},
            "kubelet.servingCertificate: CSR contradicts tlsCertFile",
        ),
        (
            {"servingCertificate": "SelfSigned", "tlsCertFile": "/c", "tlsPrivateKeyFile": "/k"},
            "kubelet.servingCertificate: SelfSigned contradicts tlsCertFile",
        ),
        ({"approveServingCertificate": True}, "kubelet.approveServingCertificate: needs"),
        ({"servingCertificate": "Magic"}, "kubelet.servingCertificate"),
    ],
)
def test_contradictions_are_named(kubelet, message):
    """A wrong configuration is refused with the field's name."""
    with pytest.raises(ConfigError, match=message):
        config_file.parse(_document(kubelet))


def test_a_node_name_too_long_for_a_certificate_is_named():
    """With CSR only; a self-signed certificate's common name may be cut."""
    name = "n" * 53
    assert config_file.parse(_document({}, node=name)).kubelet.certificate_source == "SelfSigned"
    with pytest.raises(ConfigError, match=name):
        config_file.parse(_document({"servingCertificate": "CSR"}, node=name))


def _document(kubelet: Mapping[str, Any], *, node: str = "vn-a") -> str:
    return json.dumps(
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "kubelet": kubelet,
            "clusters": [{"name": "a", "nodeName": node, "kubeconfig": "/k"}],
        }
    )


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        ([], {}, ("SelfSigned", False)),
        (["--rotate-server-certificates"], {}, ("CSR", False)),
        (["--rotate-server-certificates=false"], {}, ("SelfSigned", False)),
        (["--rotate-server-certificates", "--approve-server-certificates"], {}, ("CSR", True)),
        ([], {"APISERVER_CERT_LOCATION": "/c", "APISERVER_KEY_LOCATION": "/k"}, ("Files", False)),
    ],
)
def test_flags_select_the_source(arguments, environment, expected):
    """The kubelet's own flag requests certificates by CSR."""
    kubelet = command_line.PROGRAM.parse(["--client-kubeconfig=/k", *arguments], environment).config.kubelet
    assert (kubelet.certificate_source, kubelet.approve_serving_certificate) == expected


def test_flags_and_environment_that_contradict_are_named():
    """Files from the environment and --rotate-server-certificates exclude one another."""
    environment = {"APISERVER_CERT_LOCATION": "/c", "APISERVER_KEY_LOCATION": "/k"}
    with pytest.raises(ConfigError, match=r"kubelet\.servingCertificate: CSR contradicts tlsCertFile"):
        command_line.PROGRAM.parse(["--client-kubeconfig=/k", "--rotate-server-certificates"], environment)


def test_a_flag_that_contradicts_the_file_is_named(tmp_path):
    """What a flag adds to --config is validated together with it."""
    file = tmp_path / "config.yaml"
    file.write_text(_document({"tlsCertFile": "/c", "tlsPrivateKeyFile": "/k"}))
    with pytest.raises(ConfigError, match=r"kubelet\.servingCertificate"):
        command_line.PROGRAM.parse(["--config", str(file), "--rotate-server-certificates"], {})


@pytest.mark.parametrize("approve", [False, True])
def test_rights_are_for_own_nodes_only(approve):
    """Impersonation is granted by name, and approval only where it is configured."""
    config = config_file.parse(_document({"servingCertificate": "CSR", "approveServingCertificate": approve}))
    config.clusters[0].nodes = [NodeConfig(name=name) for name in ("vn-b", "vn-a")]
    table = daemon.upper(config)
    rules = manifests.cluster_role(table)["rules"]
    named = {resource: rule.get("resourceNames") for rule in rules for resource in rule["resources"]}
    assert named["users"] == ["system:node:vn-a", "system:node:vn-b"]
    assert named["groups"] == ["system:nodes"]
    assert ("signers" in named) == approve
    asked = [attributes for right in table for attributes in right.attributes()]
    assert {"verb": "impersonate", "group": "", "resource": "users", "name": "system:node:vn-a"} in asked
    assert all(attributes.get("name") for attributes in asked if attributes["verb"] == "impersonate")
