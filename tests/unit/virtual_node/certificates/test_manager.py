"""The certificates of all virtual nodes of a process, over restarts of their lower clusters."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509
from prometheus_client import REGISTRY

from controller_runtime.errors import ConfigError
from controller_runtime.tls.key_pairs import make_ca, self_signed
from controller_runtime.tls.reloader import CertificateReloader
from tests.unit.virtual_node.certificates.signing import ADDRESSES, FakeCluster
from virtual_node.certificates import NodeCertificates
from virtual_node.config.types import KubeletConfig


def _certificates(cluster: FakeCluster, **fields: Any) -> NodeCertificates:
    client: Any = cluster
    return NodeCertificates(KubeletConfig(**fields), upper=client)


def _served(reloader: CertificateReloader) -> x509.Certificate:
    assert reloader.pair is not None
    return x509.load_pem_x509_certificate(reloader.pair.certificate)


@pytest.mark.looptime
async def test_a_signed_certificate_survives_a_restart_of_its_lower_cluster():
    """No other one is requested."""
    cluster = FakeCluster()
    cluster.on_create, cluster.life = cluster.issue, timedelta(days=36500)
    certificates = _certificates(cluster, serving_certificate="CSR")
    first = certificates.reloader("vn-a", ADDRESSES, client_ca=b"")
    before = _served(first)
    tasks = certificates.maintain(first, "vn-a", ADDRESSES, record_event=lambda _reason, _message: None)
    async with asyncio.timeout(600):
        while _served(first) == before:  # noqa: ASYNC110 - a replaced pair tells nobody
            await asyncio.sleep(1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    again = certificates.reloader("vn-a", ADDRESSES, client_ca=b"")
    certificates.maintain(again, "vn-a", ADDRESSES, record_event=lambda _reason, _message: None)
    await asyncio.sleep(3600)
    await certificates.close()
    assert _served(again) == _served(first)
    assert len(cluster.created) == 1


async def test_each_node_has_its_own_certificate():
    certificates = _certificates(FakeCluster(), serving_certificate="CSR")
    subjects = {
        _served(certificates.reloader(name, ADDRESSES, client_ca=b"")).subject.rfc4514_string()
        for name in ("vn-a", "vn-b")
    }
    assert subjects == {"CN=system:node:vn-a", "CN=system:node:vn-b"}


@pytest.mark.looptime
async def test_self_signed_certificates_need_no_request():
    """The default serves all addresses of the node."""
    cluster = FakeCluster()
    certificates = _certificates(cluster)
    reloader = certificates.reloader("vn-a", ADDRESSES, client_ca=b"")
    certificates.maintain(reloader, "vn-a", ADDRESSES, record_event=lambda _reason, _message: None)
    await asyncio.sleep(3600)
    await certificates.close()
    extension = _served(reloader).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert extension.value.get_values_for_type(x509.DNSName) == ["vn-a"]
    assert len(list(extension.value)) == len(ADDRESSES)
    assert cluster.created == []


def _end(node_name: str) -> float | None:
    return REGISTRY.get_sample_value(
        "virtual_node_certificate_expiration_timestamp_seconds", {"name": f"kubelet-{node_name}"}
    )


async def test_a_removed_node_has_no_expiry_metric():
    """Otherwise its alert would fire a year after it was removed from the configuration."""
    certificates = _certificates(FakeCluster())
    served = []
    for _ in range(2):
        reloader = certificates.reloader("vn-gone", ADDRESSES, client_ca=b"")
        served.append(
            certificates.maintain(reloader, "vn-gone", ADDRESSES, record_event=lambda _reason, _message: None)
        )
    for tasks, is_known in zip(served, (True, False), strict=True):
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
        assert (_end("vn-gone") is not None) is is_known


async def test_files_are_served_and_followed(tmp_path):
    """Those of tlsCertFile; unreadable ones are an error that names them."""
    paths = tmp_path / "tls.crt", tmp_path / "tls.key"
    fields = {"tls_cert_file": str(paths[0]), "tls_private_key_file": str(paths[1])}
    certificates = _certificates(FakeCluster(), **fields)
    with pytest.raises(ConfigError, match=r"tls\.crt"):
        certificates.reloader("vn-a", ADDRESSES, client_ca=b"")
    self_signed("first").write(*paths)
    reloader = certificates.reloader("vn-a", ADDRESSES, client_ca=b"")
    self_signed("second, of another length").write(*paths)
    assert await reloader.check()


async def test_a_changed_client_ca_applies_to_every_node():
    """Also to a node with a restarted lower cluster."""
    certificates = _certificates(FakeCluster())
    reloaders = [certificates.reloader(name, ADDRESSES, client_ca=b"") for name in ("vn-a", "vn-b")]
    certificates.trust(make_ca("upper").certificate)
    assert all(reloader.verifies_clients for reloader in reloaders)
