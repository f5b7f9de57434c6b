"""external-dns: the addresses that it publishes for a headless Service, for pods and for NodePort Services."""

from __future__ import annotations

import re
from typing import Any

from tests.company import manifests
from tests.company.place import Place
from tests.company.software import Observations, Software
from tests.recipes import block
from tests.workloads import manifest

_ANNOTATION = "external-dns.kubernetes.io"
_ZONE = "company.example"
_OPTIONS = [
    *("--source=service", "--source=pod", "--provider=inmemory", f"--inmemory-zone={_ZONE}"),
    *("--registry=noop", "--policy=sync", "--interval=2s", "--min-event-sync-interval=1s"),
]
_CHANGE = re.compile(r'msg="(CREATE|UPDATE \(new\)|DELETE): (\S+) \d+ IN A +([\d.;]+) ')
_SERVE = "mkdir /tmp/w; hostname > /tmp/w/index.html; exec httpd -f -p 8080 -h /tmp/w"


async def _run(place: Place) -> Observations:
    image = place.import_program("external-dns", "/external-dns")
    await place.install(*await _published(place), images={"external-dns": image})
    await place.apply(*_web(place), _client(place))

    async def follows() -> bool:
        pods = await place.pods("app=web")
        return len(pods) == 2 and await _records(place) == _wanted(pods)

    await place.becomes(follows, True, "the records name the addresses of the pods")
    records = await _records(place)
    seen: dict[str, Any] = {"records": sorted(records)}
    seen["answers"] = {name: await _answers(place, records[name], 8080) for name in sorted(records)}
    old = records[f"web-1.web.{_ZONE}"]
    await place.cluster.kubectl("-n", place.namespace, "delete", "pod", "web-1")

    async def replaced() -> bool:
        return await follows() and (await _records(place))[f"web-1.web.{_ZONE}"] != old

    await place.becomes(replaced, True, "the records follow a replaced pod")
    recipe = manifests.in_namespace(block("external-dns", "service.yaml"), place.namespace)
    await place.apply(_service(place, "port", type="NodePort"), recipe)

    async def published() -> bool:
        return {f"port.{_ZONE}", f"shop.{_ZONE}"} <= (await _records(place)).keys()

    await place.becomes(published, True, "the NodePort Services have records")
    seen["record of the recipe"] = (await _records(place))[f"shop.{_ZONE}"]
    service = await place.get(f"/api/v1/namespaces/{place.namespace}/services/port")
    port = service["spec"]["ports"][0]["nodePort"]
    addresses = (await _records(place))[f"port.{_ZONE}"]
    seen["answers by the NodePort"] = len(await _answers(place, addresses, port))
    await place.cluster.kubectl("-n", place.namespace, "delete", "service", "web", "port", "shop")
    await place.cluster.kubectl("-n", place.namespace, "delete", "statefulset", "web")

    async def names() -> list[str]:
        return sorted(await _records(place))

    await place.becomes(names, [], "no record is left")
    assert seen["answers"][f"web.{_ZONE}"] == ["web-0", "web-1"], seen
    assert seen["record of the recipe"] == ["192.0.2.21", "192.0.2.22"], seen
    return seen


async def _published(place: Place) -> list[dict[str, Any]]:
    """Return the manifest with the sources and the provider of this job."""
    objects = await manifests.rendered(place.tools.modules["external-dns"] / "kustomize")
    for body in objects:
        for subject in body.get("subjects", []):
            subject["namespace"] = place.namespace
        if body["kind"] == "Deployment":
            body["spec"]["template"]["spec"]["containers"][0]["args"] = _OPTIONS
    return [manifests.in_namespace(body, place.namespace) for body in objects]


async def _records(place: Place) -> dict[str, list[str]]:
    """Return name → addresses, by the changes that external-dns has logged."""
    done = await place.cluster.kubectl("-n", place.namespace, "logs", "deployment/external-dns")
    records: dict[str, list[str]] = {}
    for change, name, addresses in _CHANGE.findall(done.stdout):
        if change == "DELETE":
            records.pop(name, None)
        else:
            records[name] = sorted(addresses.split(";"))
    return records


def _wanted(pods: list[dict[str, Any]]) -> dict[str, list[str]]:
    addresses = {pod["metadata"]["name"]: pod["status"].get("podIP", "") for pod in pods}
    every = sorted(addresses.values())
    return {
        f"web.{_ZONE}": every,
        f"pods.{_ZONE}": every,
        **{f"{name}.web.{_ZONE}": [address] for name, address in addresses.items()},
    }


async def _answers(place: Place, addresses: list[str], port: int) -> list[str]:
    """Return the pages that a pod gets from these addresses, sorted."""
    pages = []
    for address in addresses:
        call = ("timeout", "5", "wget", "-q", "-O-", f"http://{address}:{port}/")
        done = await place.cluster.kubectl("-n", place.namespace, "exec", "client", "--", *call, check=False)
        pages += done.stdout.split()
    return sorted(pages)


def _web(place: Place) -> list[dict[str, Any]]:
    metadata = {"namespace": place.namespace}
    container = {
        "name": "main",
        "image": "busybox:1.36",
        "command": ["sh", "-c", _SERVE],
        "readinessProbe": {"httpGet": {"port": 8080}, "periodSeconds": 1},
    }
    template = {
        "metadata": {
            "labels": {"app": "web"},
            "annotations": {f"{_ANNOTATION}/internal-hostname": f"pods.{_ZONE}"},
        },
        "spec": place.pod_spec(container),
    }
    spec = {
        "serviceName": "web",
        "replicas": 2,
        "selector": {"matchLabels": {"app": "web"}},
        "template": template,
    }
    return [
        _service(place, "web", clusterIP="None"),
        manifest("StatefulSet", "web", api="apps/v1", metadata=metadata, spec=spec),
    ]


def _service(place: Place, name: str, **spec: Any) -> dict[str, Any]:
    metadata = {
        "namespace": place.namespace,
        "annotations": {f"{_ANNOTATION}/hostname": f"{name}.{_ZONE}"},
    }
    spec |= {"selector": {"app": "web"}, "ports": [{"port": 8080}]}
    return manifest("Service", name, metadata=metadata, spec=spec)


def _client(place: Place) -> dict[str, Any]:
    container = {"name": "main", "image": "busybox:1.36", "command": ["sleep", "36000"]}
    metadata = {"namespace": place.namespace}
    return manifest("Pod", "client", metadata=metadata, spec=place.pod_spec(container))


SOFTWARE = Software(
    name="external-dns",
    job="records of a headless Service, of its pods and of NodePort Services, one as in "
    "[external-dns](../operate/other-programs.md#external-dns), which follow a replaced pod and are removed; with the "
    "provider in memory",
    run=_run,
    programs=("external-dns",),
)
