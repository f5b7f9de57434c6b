"""``join --via konnectivity``: what it makes, what it refuses, and that ``leave`` removes it."""

from __future__ import annotations

import argparse
import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from controller_runtime.errors import ConfigError
from controller_runtime.objects import from_dict
from tests.unit.virtual_node.commands.installations import Api, thing
from virtual_node.commands.lower_cluster import account, tunnel
from virtual_node.rights import manifests
from virtual_node.rights import tunnel as objects
from virtual_node.rights.tunnel import Tunnel

SPACE = "virtual-node-system"
TUNNEL = Tunnel("tokyo", "u", SPACE, "virtual-node", "192.0.2.7", 8091)


class _Applied(Api):
    """A cluster that applies objects, of which Deployments are ready at once."""

    def __init__(self, *found: Any, ready: bool = True) -> None:
        super().__init__(*found)
        self.ready = ready
        self.config: Any = SimpleNamespace(server="https://10.0.0.1:6443")

    async def patch(  # type: ignore[override]
        self, resource: Any, name: str, body: Any, *, namespace: Any = None, **_more: Any
    ) -> Any:
        """Create or replace the object."""
        self.patched.append((name, body))
        kept = [one for one in self.objects if (one.kind, one.name) != (resource.kind, name)]
        metadata = {**body["metadata"], "uid": f"u-{name}", "generation": 1}
        status = {"observedGeneration": 1, "updatedReplicas": 1, "availableReplicas": int(self.ready)}
        data = {key: account._base64(value) for key, value in body.get("stringData", {}).items()}
        self.objects = [
            *kept,
            from_dict({**body, "metadata": metadata, "status": status, **({"data": data} if data else {})}),
        ]
        return body

    async def delete(self, *where: Any, propagation_policy: str = "", **more: Any) -> Any:
        """Delete the object at once."""
        return await super().delete(*where, **more)


def applied(*found: Any, ready: bool = True) -> Any:
    """Return a cluster in place of a client."""
    return _Applied(*found, ready=ready)


def options(**more: Any) -> argparse.Namespace:
    """Return a command line."""
    given = {"name": "tokyo", "namespace": SPACE, "account_namespace": "virtual-node", "via": "konnectivity"}
    rest = {"tunnel_address": "192.0.2.7:8091", "tunnel_images": objects.IMAGES, "timeout": 1.0}
    return argparse.Namespace(**{**given, **rest, "dry_run": False, "server": "", **more})


async def test_another_join_keeps_the_certificates_unless_the_address_changes() -> None:
    """So a repeated join does not end the connections of the cluster."""
    upper, lower = applied(), applied()
    first = await tunnel.ensure(options(), upper, lower, cluster_id="u")
    assert await tunnel.ensure(options(), upper, lower, cluster_id="u") == first
    assert first.url == f"https://virtual-node-tokyo-tunnel.{SPACE}.svc:8090"
    moved = await tunnel.ensure(options(tunnel_address="192.0.2.8:8091"), upper, lower, cluster_id="u")
    assert moved.ca != first.ca
    await tunnel.remove(options(), upper, lower, cluster_id="u")
    assert (upper.objects, lower.objects) == ([], [])


async def test_what_join_did_not_make_stays() -> None:
    """It is named, and nothing is removed."""
    foreign = thing("Deployment", TUNNEL.name, namespace=SPACE, spec={})
    upper = applied(foreign)
    with pytest.raises(ConfigError, match=f"Deployment {SPACE}/{TUNNEL.name} that .* join' did not make"):
        await tunnel.ensure(options(), upper, applied(), cluster_id="u")
    await tunnel.remove(options(), upper, None, cluster_id="u")
    assert [one.name for one in upper.objects] == [TUNNEL.name]


async def test_an_agent_that_does_not_connect_is_an_error_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message has the address that the agent must reach, and where its log is."""
    monkeypatch.setattr(tunnel, "_POLL", 0.01)
    with pytest.raises(ConfigError, match=r"in the cluster: lower\. .*logs deployment/.* 192\.0\.2\.7:8091"):
        async with asyncio.timeout(10):
            await tunnel.ensure(options(timeout=0.05), applied(), applied(ready=False), cluster_id="u")


async def test_a_dry_run_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """It says what it would do."""
    upper, lower = applied(), applied()
    await tunnel.ensure(options(dry_run=True), upper, lower, cluster_id="u")
    assert (upper.patched, lower.patched) == ([], [])
    assert "would run a proxy server" in capsys.readouterr().out


async def test_the_kubeconfig_uses_the_proxy() -> None:
    """It trusts both CAs, and has the certificate for the proxy and the token for the lower cluster."""
    ca = thing("ConfigMap", "kube-root-ca.crt", namespace="virtual-node", data={"ca.crt": "LOWER"})
    proxy = account.Proxy("https://proxy:8090", objects.SERVER, "PROXY", "CERTIFICATE", "KEY")
    made = yaml.safe_load(await account.kubeconfig(applied(ca), options(), proxy))
    cluster, user = made["clusters"][0]["cluster"], made["users"][0]["user"]
    assert cluster == {
        "server": "https://kubernetes.default.svc:443",
        "certificate-authority-data": account._base64("LOWER\nPROXY"),
        "proxy-url": "https://proxy:8090",
    }
    assert user == {
        "tokenFile": "token",
        "client-certificate-data": account._base64("CERTIFICATE"),
        "client-key-data": account._base64("KEY"),
    }


def test_neither_side_gets_the_keys_of_another() -> None:
    """The agent's Secret has no key of the server or of the client, and the server's pod none of the others."""
    data = objects.certificates(TUNNEL)
    secret, deployment = objects.lower_objects(TUNNEL, data)
    assert sorted(secret["stringData"]) == ["agent.crt", "agent.key", "ca.crt"]
    *_, server = objects.upper_objects(TUNNEL, data)
    (volume,) = server["spec"]["template"]["spec"]["volumes"]
    assert [one["path"] for one in volume["secret"]["items"]] == ["ca.crt", "server.crt", "server.key"]
    for each in (server, deployment):
        pod = each["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
    assert "ca.key" not in data
    assert manifests.NAME in server["metadata"]["labels"].values()


@pytest.mark.parametrize(
    ("port", "spec"),
    [
        (8091, {"type": "LoadBalancer", "ports": [{"name": "agents", "port": 8091, "targetPort": 8091}]}),
        (443, {"type": "LoadBalancer", "ports": [{"name": "agents", "port": 443, "targetPort": 8091}]}),
        (
            30443,
            {
                "type": "NodePort",
                "ports": [{"name": "agents", "port": 8091, "targetPort": 8091, "nodePort": 30443}],
            },
        ),
    ],
)
def test_agents_connect_to_a_load_balancer_or_node_port(port: int, spec: dict[str, Any]) -> None:
    """The port says which; the first agent reaches a proxy server that is not ready yet."""
    made = Tunnel("tokyo", "u", SPACE, "virtual-node", "192.0.2.7", port)
    service = objects.upper_objects(made, objects.certificates(made))[2]
    assert {key: service["spec"][key] for key in spec} == spec
    assert service["spec"]["publishNotReadyAddresses"] is True


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tunnel_address": ""}, "--tunnel-address: HOST:PORT"),
        ({"via": ""}, "only with it"),
        ({"tunnel_address": "host"}, "'host' is not HOST:PORT"),
        ({"tunnel_address": "host:99999"}, "is not HOST:PORT"),
        ({"tunnel_address": "a:b:1"}, "--tunnel-address"),
    ],
)
def test_unusable_flags_are_refused(more: dict[str, Any], words: str) -> None:
    """Before anything is changed."""
    with pytest.raises(ConfigError, match=words):
        tunnel.check(options(**more))


def test_an_ipv6_address_is_in_brackets() -> None:
    """As in URLs."""
    assert objects.address("[2001:db8::7]:8091") == ("2001:db8::7", 8091)
