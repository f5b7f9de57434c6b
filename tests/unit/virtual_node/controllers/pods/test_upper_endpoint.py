"""Where pods of lower clusters reach the upper API server, from what the upper cluster shows."""

from __future__ import annotations

import asyncio
import ssl
from types import SimpleNamespace
from typing import Any

import pytest

from controller_runtime.errors import NotFound
from controller_runtime.objects import from_dict
from controller_runtime.tls.key_pairs import make_ca, sign
from virtual_node.controllers.pods import api_services
from virtual_node.translate.pods.api_server import Endpoint


class Upper:
    """A client of an upper cluster with Service ``kubernetes``, its EndpointSlice and the CA of pods."""

    def __init__(self, server: str, *, source: str = "file", advertised: tuple[str, ...] = (), ca: str = ""):
        self.config = SimpleNamespace(server=server, source=source)
        self._ca = ca
        metadata = {"name": "kubernetes", "namespace": "default", "uid": "u"}
        slices = {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata,
            "endpoints": [{"addresses": [address]} for address in advertised], "ports": [{"port": 6443}],
        }  # fmt: skip
        service = {
            "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"clusterIP": "10.96.0.1"},
        }  # fmt: skip
        self._objects: dict[str, Any] = {"services": service, "endpointslices": slices}

    async def list(self, resource: Any, **_selection: Any) -> Any:
        return SimpleNamespace(items=[from_dict(self._objects[resource.plural])])

    async def get(self, _resource: Any, _name: str, **_more: Any) -> dict[str, Any]:
        if not self._ca:
            raise NotFound("none")
        return {"data": {"ca.crt": self._ca}}


async def _found(url: str, **facts: Any) -> tuple[str, int, bool]:
    upper: Any = Upper(url, **facts)
    endpoint = await api_services.find(upper)
    return endpoint.host, endpoint.port, bool(endpoint.problem)


@pytest.mark.parametrize(
    ("url", "facts", "expected"),
    [
        ("https://192.0.2.1:6443", {}, ("192.0.2.1", 6443, False)),
        ("https://192.0.2.1", {}, ("192.0.2.1", 443, False)),
        ("https://127.0.0.1:6443", {"advertised": ("192.0.2.7",)}, ("192.0.2.7", 6443, False)),
        ("https://127.0.0.1:6443", {"advertised": ("127.0.0.1",)}, ("", 0, True)),
        ("https://127.0.0.1:6443", {}, ("", 0, True)),
        ("https://10.96.0.1", {"advertised": ("192.0.2.7", "192.0.2.8")}, ("192.0.2.7", 6443, False)),
        (
            "https://192.0.2.9",
            {"source": "in-cluster", "advertised": ("192.0.2.7",)},
            ("192.0.2.7", 6443, False),
        ),
        ("https://192.0.2.1/k8s/clusters/c-1", {}, ("", 0, True)),
    ],
)
async def test_the_address_is_one_that_leads_to_the_same_server_from_another_cluster(
    url: str, facts: dict[str, Any], expected: tuple[str, int, bool]
):
    """Otherwise the problem says what to set."""
    assert await _found(url, **facts) == expected


async def test_a_given_url_is_used_as_it_is():
    """Also if it is wrong, which is reported."""
    found = await api_services.find(Upper("https://192.0.2.1"), "https://127.0.0.1:5")  # type: ignore[arg-type]
    assert (found.host, found.port) == ("127.0.0.1", 5)
    assert "set kubernetesServiceURL" in found.problem


@pytest.mark.parametrize(
    ("hosts", "is_trusted", "uses_name", "problem"),
    [
        (["127.0.0.1"], True, False, ""),
        (["kubernetes.default.svc"], True, True, ""),
        (["other"], True, False, "IP address mismatch"),
        (["127.0.0.1"], False, False, "certificate verify failed|unable to get local issuer|self-signed"),
    ],
)
async def test_the_certificate_is_verified_as_in_a_pod(
    hosts: list[str], problem: str, tmp_path: Any, *, is_trusted: bool, uses_name: bool
):
    """With the CA of kube-root-ca.crt alone; the name is used if only that is in the certificate."""
    authority = make_ca("ca")
    served, trusted = sign(authority, "api", hosts=hosts), authority if is_trusted else make_ca("other")
    served.write(tmp_path / "crt", tmp_path / "key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        upper: Any = Upper("https://x", ca=trusted.certificate.decode())
        endpoint = Endpoint("127.0.0.1", port, ips=["127.0.0.1"])
        found = await api_services._verified(upper, endpoint)
    assert found.uses_name is uses_name
    if problem:
        with pytest.raises(AssertionError, match=problem):
            raise AssertionError(found.problem)
    else:
        assert not found.problem


async def test_a_server_that_does_not_answer_is_not_judged():
    """Pods may have a route to it that the virtual node has not."""
    upper: Any = Upper("https://x", ca=make_ca("ca").certificate.decode())
    endpoint = Endpoint("127.0.0.1", 1, ips=["127.0.0.1"])
    assert await api_services._verified(upper, endpoint) == endpoint
