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
from hack.chart.template import HelmError
from tests.unit.charts import rendering
from tests.unit.charts.test_pod_specs import violations
from tests.unit.virtual_node.commands.installations import Api, thing
from virtual_node.commands.lower_cluster import account, tunnel
from virtual_node.rights import tunnel as objects
from virtual_node.rights.tunnel import Tunnel

SPACE = "virtual-node-system"
TUNNEL = Tunnel("tokyo", "u", SPACE, "virtual-node", "192.0.2.7:8091")
ADDRESS = "192.0.2.7:8091"


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
        if "metadata" not in body:
            return body  # a merge patch
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
    rest = {"tunnel_address": ADDRESS, "tunnel_images": "", "timeout": 1.0}
    return argparse.Namespace(**{**given, **rest, "dry_run": False, "server": "", **more})


async def _join(upper: Any, lower: Any, entry: Any = None, **more: Any) -> account.Proxy | None:
    """Run the steps of a join that concern the tunnel."""
    given = options(**more)
    tunnel.check(given)
    known = tunnel.known(await tunnel.kept(upper, given), entry)
    made = tunnel.chosen(given, known, cluster_id="u")
    return None if made is None else await tunnel.ensure(given, upper, lower, made, known)


async def test_another_join_keeps_the_tunnel_unless_it_is_told_otherwise() -> None:
    """Without flags, too: address, images and certificates stay, so no connection of the cluster ends."""
    upper, lower = applied(), applied()
    first = await _join(upper, lower, tunnel_images="mirror.example")
    assert first is not None
    assert first.url == f"https://virtual-node-tokyo-tunnel.{SPACE}.svc:8090"
    made = lower.objects
    for more in ({}, {"via": ""}, {"tunnel_address": ""}):
        assert await _join(upper, lower, **{"tunnel_address": "", **more}) == first
        assert [one.to_dict() for one in lower.objects] == [one.to_dict() for one in made]
    assert "mirror.example/proxy-agent:" in str(made[-1].to_dict())
    assert tunnel.way(options(), await tunnel.kept(upper, options())) == first, (
        "register uses the tunnel, too"
    )
    assert await _join(upper, lower, via="direct", tunnel_address="") is None
    await tunnel.remove(options(), upper, lower, cluster_id="u")
    assert (upper.objects, lower.objects) == ([], [])


@pytest.mark.parametrize("lost", ["address", "server.crt", "ca.crt"])
async def test_certificates_that_do_not_fit_are_replaced(lost: str) -> None:
    """Those for another address; both programs then read the new ones, because they read them only at their start."""
    upper, lower = applied(), applied()
    first = await _join(upper, lower)
    upper.objects.append(from_dict(thing("Deployment", TUNNEL.name, namespace=SPACE, spec={})))
    if lost == "address":
        moved = await _join(upper, lower, tunnel_address="192.0.2.8:8091")
    else:
        (secret,) = (one.to_dict() for one in upper.objects if one.kind == "Secret")
        del secret["data"][lost]
        upper.objects = [*(one for one in upper.objects if one.kind != "Secret"), from_dict(secret)]
        moved = await _join(upper, lower, via="", tunnel_address="")
    assert first is not None
    assert moved is not None
    assert moved.ca != first.ca
    digest = lower.objects[-1].to_dict()["spec"]["template"]["metadata"]["annotations"]
    name, patch = upper.patched[-1]
    assert (name, patch["spec"]["template"]["metadata"]["annotations"]) == (TUNNEL.name, digest)


async def test_the_tunnel_in_the_values_is_used_without_flags() -> None:
    """Also if its Secret was deleted, as to get new certificates, and if the address was changed there."""
    upper, lower = applied(), applied()
    assert await _join(upper, lower, via="", tunnel_address="") is None
    entry = {"name": "tokyo", "tunnel": {"address": "192.0.2.9:443"}}
    assert await _join(upper, lower, entry, via="", tunnel_address="") is not None
    assert "--proxy-server-host=192.0.2.9" in str(lower.objects[-1].to_dict())
    moved = {"name": "tokyo", "tunnel": {"address": "192.0.2.10:443"}}
    assert await _join(upper, lower, moved, via="", tunnel_address="") is not None
    assert "--proxy-server-host=192.0.2.10" in str(lower.objects[-1].to_dict())


async def test_what_join_did_not_make_stays() -> None:
    """It is named, and nothing is removed."""
    foreign = thing("Secret", TUNNEL.name, namespace=SPACE, data={})
    upper = applied(foreign)
    with pytest.raises(ConfigError, match=f"Secret {SPACE}/{TUNNEL.name} that .* join' did not make"):
        await _join(upper, applied())
    await tunnel.remove(options(), upper, None, cluster_id="u")
    assert [one.name for one in upper.objects] == [TUNNEL.name]


async def test_an_agent_that_does_not_connect_is_an_error_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message has the address that the agent must reach, and where its log is."""
    monkeypatch.setattr(tunnel, "_POLL", 0.01)
    with pytest.raises(ConfigError, match=r"logs deployment/.* 192\.0\.2\.7:8091"):
        async with asyncio.timeout(10):
            await tunnel.connected(applied(), TUNNEL, 0.05)


async def test_a_dry_run_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """It says what it would do."""
    upper, lower = applied(), applied()
    await _join(upper, lower, dry_run=True)
    assert (upper.patched, lower.patched) == ([], [])
    assert "would run the agent" in capsys.readouterr().out


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


def test_the_agent_gets_only_its_own_key() -> None:
    """And no rights; the key of the CA is nowhere. The chart's template mounts only the server's key above."""
    data = objects.certificates(TUNNEL)
    secret, deployment = objects.lower_objects(TUNNEL, data)
    assert sorted(secret["stringData"]) == ["agent.crt", "agent.key", "ca.crt"]
    assert "ca.key" not in objects.upper_secret(TUNNEL, data)["stringData"]
    pod = deployment["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert violations(pod) == []


def _rendered(text: str) -> dict[str, Any]:
    entry = f"name: tokyo, kubeconfigSecret: {{name: s}}, tunnel: {text}"
    found = rendering.render(f"virtualNode: {{clusters: [{{{entry}}}]}}")
    return {f"{one['metadata']['name']}/{one['kind']}": one for one in found}


@pytest.mark.parametrize(
    ("text", "kind", "ports"),
    [
        ("{address: 'a:8091'}", "LoadBalancer", {"port": 8091}),
        ("{address: 'a:443'}", "LoadBalancer", {"port": 443}),
        ("{address: '[2001:db8::7]:443'}", "LoadBalancer", {"port": 443}),
        ("{address: 'a:30443'}", "NodePort", {"port": 8091, "nodePort": 30443}),
        ("{address: 'a:30443', service: {type: LoadBalancer}}", "LoadBalancer", {"port": 8091}),
        ("{address: 'a:443', service: {type: NodePort}}", "NodePort", {"port": 8091}),
        ("{address: 'a:443', service: {type: ClusterIP}}", "ClusterIP", {"port": 8091}),
    ],
)
def test_agents_connect_to_a_load_balancer_or_node_port(text: str, kind: str, ports: dict[str, int]) -> None:
    """The port says which, unless the values do."""
    spec = _rendered(text)[f"{TUNNEL.name}-agents/Service"]["spec"]
    assert spec["type"] == kind
    assert spec["ports"] == [{"name": "agents", "targetPort": "agents", **ports}]


def test_the_chart_runs_the_proxy_server_that_kubeconfigs_use() -> None:
    """Names, ports, version and files are those of join; it has no rights, and only its own key."""
    found = _rendered("{address: 'a:8091'}")
    service, deployment = found[f"{TUNNEL.name}/Service"], found[f"{TUNNEL.name}/Deployment"]
    assert service["spec"]["ports"][0]["port"] == objects.PROXY_PORT
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert (ports["proxy"], ports["agents"]) == (objects.PROXY_PORT, objects.AGENT_PORT)
    assert container["image"] == f"{objects.IMAGES}/proxy-server:{objects.VERSION}"
    (volume,) = pod["volumes"]
    assert volume["secret"]["secretName"] == TUNNEL.name
    items = [one["key"] for one in volume["secret"]["items"]]
    assert items == ["ca.crt", "server.crt", "server.key"]
    assert {*items} < {*objects.certificates(TUNNEL)}
    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for each in (service, found[f"{TUNNEL.name}-agents/Service"]):
        assert each["spec"]["selector"].items() <= labels.items()
    assert not [one for one in labels if "version" in one], "an upgrade does not interrupt the tunnel"


def test_names_of_services_fit() -> None:
    """A longer name of a cluster is refused by join and by the chart."""
    name = "a" * objects.MAX_NAME
    assert len(f"{objects.upper_name(name)}-agents") == 63
    with pytest.raises(ConfigError, match="at most 36 characters"):
        tunnel.check(options(name=f"{name}a"))
    entry = f"name: {name}a, kubeconfigSecret: {{name: s}}, tunnel: {{address: 'a:1'}}"
    with pytest.raises(HelmError, match="36"):
        rendering.render(f"virtualNode: {{clusters: [{{{entry}}}]}}")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tunnel_address": ""}, "--tunnel-address: HOST:PORT"),
        ({"via": ""}, "--tunnel-address: only with --via konnectivity"),
        ({"via": "direct"}, "--tunnel-address: only with --via konnectivity"),
        ({"tunnel_address": "host"}, "'host' is not HOST:PORT"),
        ({"tunnel_address": "host:99999"}, "is not HOST:PORT"),
        ({"tunnel_address": "a:b:1"}, "--tunnel-address"),
    ],
)
def test_unusable_flags_are_refused(more: dict[str, Any], words: str) -> None:
    """Before anything is changed."""
    given = options(**more)
    with pytest.raises(ConfigError, match=words):  # noqa: PT012 - the address is checked with what is known
        tunnel.check(given)
        tunnel.chosen(given, {}, cluster_id="u")


def test_an_ipv6_address_is_in_brackets() -> None:
    """As in URLs."""
    assert objects.address("[2001:db8::7]:8091") == ("2001:db8::7", 8091)
