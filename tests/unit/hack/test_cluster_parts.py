from __future__ import annotations

import base64
import json
import secrets
import socket
import ssl
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hack.sandbox import inotify, ports
from hack.sandbox.cluster import Cluster
from hack.sandbox.commands import cli
from hack.sandbox.errors import SandboxError
from hack.sandbox.nodes.kwok import kwok_node
from hack.sandbox.nodes.network import Bridge
from hack.sandbox.pki import USERS
from hack.sandbox.ports import free_ports

PATHS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Cluster:
    """A cluster that is not started."""
    directory = tmp_path_factory.mktemp("upper")
    paths = {name: directory / name for name in PATHS}
    return Cluster("upper", directory=directory, binaries=paths, etcd_url="http://127.0.0.1:1", number=0)


def certificate(cluster: Cluster, name: str) -> x509.Certificate:
    """Return one of the cluster's certificates."""
    return x509.load_pem_x509_certificate(cluster.pki.certificate(name).read_bytes())


@pytest.mark.parametrize("user", USERS)
def test_every_user_has_a_client_certificate_of_the_cluster(cluster, user):
    """Signed by the cluster's authority, for the name and groups that Kubernetes' RBAC knows."""
    name, groups = USERS[user]
    found = certificate(cluster, user)
    found.verify_directly_issued_by(certificate(cluster, "ca"))
    subject = found.subject
    assert [item.value for item in subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [name]
    assert [item.value for item in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == list(groups)
    usage = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    key = load_pem_private_key(cluster.pki.key(user).read_bytes(), None)
    assert key.public_key() == found.public_key()


def test_the_apiservers_certificate_has_all_its_names(cluster):
    """Loopback, the service's address and names: clients inside and outside verify it."""
    names = (
        certificate(cluster, "apiserver")
        .extensions.get_extension_for_class(x509.SubjectAlternativeName)
        .value
    )
    assert {str(address) for address in names.get_values_for_type(x509.IPAddress)} == {
        "127.0.0.1",
        "10.96.0.1",
    }
    assert {"localhost", "kubernetes", "kubernetes.default.svc"} <= set(
        names.get_values_for_type(x509.DNSName)
    )


def test_private_keys_are_private(cluster):
    """Other users of the machine can read no key or kubeconfig."""
    assert cluster.pki.directory.stat().st_mode & 0o077 == 0
    assert cluster.kubeconfig.stat().st_mode & 0o077 == 0


def test_a_kubeconfig_is_self_contained(cluster):
    """Server, authority and identity are inside."""
    config = json.loads(cluster.kubeconfig.read_text())
    assert config["clusters"][0]["cluster"]["server"] == cluster.server
    authority = base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
    assert ssl.create_default_context(cadata=authority).get_ca_certs()
    assert (
        base64.b64decode(config["users"][0]["user"]["client-key-data"])
        == cluster.pki.key("admin").read_bytes()
    )


def test_ports_differ_and_are_free():
    found = free_ports(50)
    assert len(set(found)) == 50
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", found[0]))


def test_a_port_is_given_once(monkeypatch):
    """A sandbox chooses all of its ports before the first is bound."""
    one, other = free_ports(2)
    monkeypatch.setattr(ports, "_given", set())
    drawn = iter([one, one, other])
    monkeypatch.setattr(secrets, "randbelow", lambda _count: next(drawn) - 10_000)
    assert [*free_ports(1), *free_ports(1)] == [one, other]


def test_a_simulated_node_has_what_it_was_given():
    """Resources, labels and taints of the caller, capacity and allocatable alike."""
    node = kwok_node(
        "gpu", cpu="8", memory="64Gi", pods=20, labels={"pool": "gpu"},
        taints=[{"key": "gpu", "effect": "NoSchedule"}], extended={"nvidia.com/gpu": "4"},
    )  # fmt: skip
    assert node["status"]["capacity"] == node["status"]["allocatable"]
    capacity = node["status"]["capacity"]
    assert (capacity["cpu"], capacity["memory"], capacity["pods"]) == ("8", "64Gi", "20")
    assert capacity["nvidia.com/gpu"] == "4"
    assert node["metadata"]["labels"]["pool"] == "gpu"
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "gpu"
    assert node["spec"]["taints"] == [{"key": "gpu", "effect": "NoSchedule"}]


def test_bridges_have_different_addresses():
    """Two sandboxes with real nodes never share a subnet."""
    one, two = Bridge("vnode1", 1), Bridge("vnode2", 2)
    assert (one.address, one.node_address, one.subnet) == ("10.200.1.1", "10.200.1.2", "10.201.1.0/24")
    assert one.subnet != two.subnet


@pytest.mark.parametrize("command", ["up", "down"])
def test_a_foreign_folder_is_one_line_and_exit_code_1(tmp_path, capsys, monkeypatch, command):
    """The command line refuses it, without a traceback, and its content stays."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    assert cli.main([command, "--directory", str(tmp_path / "mine")]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert "choose another --directory" in err
    assert err.count("\n") == 1
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_no_lower_cluster_is_refused(capsys, tmp_path):
    """The message names the option."""
    assert cli.main(["up", "--lower", "0", "--directory", str(tmp_path)]) == 1
    assert "--lower: at least one" in capsys.readouterr().err


def test_down_without_a_sandbox_succeeds(capsys, tmp_path):
    assert cli.main(["down", "--directory", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out == "nothing was running\n"


def test_too_few_inotify_instances_are_an_error_before_the_start(monkeypatch):
    """A kubelet without one registers no node, and reports it only in its log."""
    monkeypatch.setattr(inotify, "_LIBC", SimpleNamespace(inotify_init1=lambda _flags: -1))
    with pytest.raises(SandboxError, match=r"7 inotify instances are needed and 0 of .*max_user_instances="):
        inotify.require(7)


def test_counted_inotify_instances_are_released():
    before = len(list(Path("/proc/self/fd").iterdir()))
    inotify.require(3)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize(("before", "after"), [("128", "1024"), ("8192", "8192")])
async def test_limit_of_inotify_instances_is_raised_and_never_lowered(before, after, monkeypatch, tmp_path):
    """Two sandboxes that start at the same time would count the same free instances of a small limit."""
    limit = tmp_path / "max_user_instances"
    limit.write_text(before + "\n")
    monkeypatch.setattr(inotify, "_LIMIT", limit)
    await inotify.available(1)
    assert limit.read_text().strip() == after
