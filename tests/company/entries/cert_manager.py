"""cert-manager: a pod waits for the Secret of its Certificate, and its volume follows a renewal."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hack.sandbox.builds import binaries
from hack.sandbox.command import command
from tests.company import manifests
from tests.company.place import Place
from tests.company.software import Observations, Software, module_version
from tests.workloads import manifest

_API = "cert-manager.io/v1"
_COMPONENTS = tuple(f"cert-manager-{part}" for part in ("controller", "webhook", "cainjector"))
_SHOW = """
while true; do
  now=$(sha256sum /tls/tls.crt); [ "$now" = "$last" ] || echo "$now"; last=$now
  sleep 2
done
"""
_AUTHORITY = "authority"


async def _run(place: Place) -> Observations:
    images = {name: place.import_program(name, f"/{name}") for name in _COMPONENTS}
    await place.install(*await _chart(place), images=images)
    await place.apply(_pod(place))
    await place.apply(
        _issuer(place, "selfsigned", {"selfSigned": {}}),
        _certificate(place, _AUTHORITY, "selfsigned", isCA=True),
        _issuer(place, _AUTHORITY, {"ca": {"secretName": _AUTHORITY}}),
        _certificate(place, "server", _AUTHORITY),
    )

    async def phase() -> str:
        return str((await place.pods("app=server"))[0]["status"]["phase"])

    await place.becomes(phase, "Running", "the pod starts as soon as its certificate is issued")

    async def shown() -> int:
        done = await place.cluster.kubectl("logs", "-n", place.namespace, "server")
        return len(done.stdout.splitlines())

    await place.becomes(shown, 1, "the pod reads its certificate")
    await _renew(place)
    await place.becomes(shown, 2, "the running pod reads the renewed certificate")
    certificate = await place.get(f"/apis/{_API}/namespaces/{place.namespace}/certificates/server")
    secret = await place.get(f"/api/v1/namespaces/{place.namespace}/secrets/server")
    (pod,) = await place.pods("app=server")
    return {
        "conditions": sorted(f"{one['type']}={one['status']}" for one in certificate["status"]["conditions"]),
        "revision": certificate["status"]["revision"],
        "keys of the Secret": sorted(secret["data"]),
        "certificates that the pod read": await shown(),
        "restarts": pod["status"]["containerStatuses"][0]["restartCount"],
        "events of the Certificate": await place.reasons("Certificate", "server"),
    }


async def _chart(place: Place) -> list[dict[str, Any]]:
    """Return the manifest of the chart, which a release makes of its source, its version and the definitions."""
    deploy = place.tools.modules[_COMPONENTS[0]] / "deploy"
    version = module_version(_COMPONENTS[0])
    with tempfile.TemporaryDirectory() as work:
        chart = Path(work) / "cert-manager"
        shutil.copytree(deploy / "charts" / "cert-manager", chart, copy_function=shutil.copyfile)
        for path in (chart, chart / "templates"):
            path.chmod(0o755)
        text = (chart / "Chart.template.yaml").read_text(encoding="utf-8").replace("v0.1.0", version)
        (chart / "Chart.yaml").write_text(text, encoding="utf-8")
        for path in (deploy / "crds").glob("*.yaml"):
            shutil.copyfile(path, chart / "templates" / path.name)
        values = {
            "startupapicheck": {"enabled": False},
            "global": {"leaderElection": {"namespace": place.namespace}},
        }
        argv: list[str | Path] = [await binaries.helm(), "template", "cert-manager", chart]
        argv += [f"--namespace={place.namespace}", "--values=-"]
        done = await command(argv, input=json.dumps(values))
    return [manifests.in_namespace(one, place.namespace) for one in manifests.parsed(done.stdout)]


async def _renew(place: Place) -> None:
    """Ask for a new certificate, as ``cmctl renew`` does."""
    condition = {
        "type": "Issuing",
        "status": "True",
        "reason": "ManuallyTriggered",
        "message": "renewed by hand",
    }
    path = f"/apis/{_API}/namespaces/{place.namespace}/certificates/server"
    ready = [one for one in (await place.get(path))["status"]["conditions"] if one["type"] != "Issuing"]
    patch = {"status": {"conditions": [*ready, condition]}}
    where = ("certificate", "server", "-n", place.namespace, "--subresource=status", "--type=merge")
    await place.cluster.kubectl("patch", *where, f"--patch={json.dumps(patch)}")


def _issuer(place: Place, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return manifest("Issuer", name, api=_API, metadata={"namespace": place.namespace}, spec=spec)


def _certificate(place: Place, name: str, issuer: str, **spec: Any) -> dict[str, Any]:
    host = f"{name}.{place.namespace}.svc"
    spec |= {"secretName": name, "commonName": name, "dnsNames": [host], "issuerRef": {"name": issuer}}
    return manifest("Certificate", name, api=_API, metadata={"namespace": place.namespace}, spec=spec)


def _pod(place: Place) -> dict[str, Any]:
    """Return a pod that writes a line for each certificate that its volume gets."""
    container = {
        "name": "main",
        "image": "busybox:1.36",
        "command": ["sh", "-c", _SHOW],
        "volumeMounts": [{"name": "tls", "mountPath": "/tls"}],
    }
    spec = {**place.pod_spec(container), "volumes": [{"name": "tls", "secret": {"secretName": "server"}}]}
    metadata = {"namespace": place.namespace, "labels": {"app": "server"}}
    return manifest("Pod", "server", metadata=metadata, spec=spec)


SOFTWARE = Software(
    name="cert-manager",
    job="a pod waits for the Secret of its Certificate, and its volume follows a renewal",
    run=_run,
    programs=_COMPONENTS,
)
