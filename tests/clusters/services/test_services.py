"""Services of the upper cluster in lower ones: names resolve, addresses lead to pods, unmanaged ones stay untouched."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web

from hack.sandbox import Cluster, Sandbox
from tests.clusters.virtual_nodes import REAL, SIMULATED, pod
from tests.serving import served
from tests.waiting import becomes, create, eventually, get, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]

SERVE = "echo {0} > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"


def service(name: str, **spec: Any) -> dict[str, Any]:
    """Return a Service for the pods labelled ``app=name``."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}], **spec},
    }


async def lower_service(cluster: Cluster, namespace: str, name: str) -> dict[str, Any]:
    """Wait for a lower Service and return it."""
    found: dict[str, Any] = {}

    async def there() -> bool:
        found.update(await get(cluster, namespace, "service", name))
        return True

    await eventually(there, what=f"{cluster.name}: service {name}")
    return found


async def addresses(cluster: Cluster, namespace: str, name: str) -> set[str]:
    """Return ready endpoint addresses of a Service."""
    found = await get(cluster, namespace, "endpointslices", labels=f"kubernetes.io/service-name={name}")
    return {
        address
        for piece in found["items"]
        for endpoint in piece["endpoints"] or ()
        if endpoint["conditions"].get("ready")
        for address in endpoint["addresses"]
    }


async def run(upper: Cluster, namespace: str, name: str, script: str, *, wanted: str) -> None:
    """Run a shell command in a pod, through the upper cluster, until it prints the expected text."""

    async def is_printed() -> bool:
        done = await upper.kubectl("-n", namespace, "exec", name, "--", "sh", "-c", script, check=False)
        return wanted in done.stdout

    await eventually(is_printed, what=f"{script}: {wanted}")


async def none_of(cluster: Cluster, namespace: str, kind: str, *, labels: str = "", name: str = "") -> bool:
    """Report whether there is nothing of that kind with that label or name."""
    fields = f"metadata.name={name}" if name else ""
    return not (await get(cluster, namespace, kind, labels=labels, fields=fields))["items"]


async def test_a_pod_reaches_another_by_service_name(sandbox: Sandbox, upper: Cluster, namespace: str):
    """Name, lower cluster IP, kube-proxy, mirrored endpoint, on a real node."""
    lower = sandbox.lower[0]
    await create(
        upper, namespace, service("web"), pod("web", SERVE.format("one")), pod("client", "sleep 600")
    )
    await ready(upper, namespace, "web")
    await ready(upper, namespace, "client")
    copy = await lower_service(lower, namespace, "web")
    assert "selector" not in copy["spec"]
    assert copy["spec"]["clusterIP"].startswith("10.97.")
    await run(upper, namespace, "client", "wget -q -O- http://web", wanted="one")
    await run(
        upper,
        namespace,
        "client",
        f"nslookup web.{namespace}.svc.cluster.local",
        wanted=copy["spec"]["clusterIP"],
    )
    await run(upper, namespace, "client", f"wget -q -O- http://{copy['spec']['clusterIP']}", wanted="one")


async def test_lower_endpoints_name_lower_pods_and_nodes(sandbox: Sandbox, upper: Cluster, namespace: str):
    """An endpoint in this cluster has its lower pod and node; an endpoint in another cluster has neither."""
    await create(
        upper, namespace, service("web"), pod("here", "sleep 600", metadata={"labels": {"app": "web"}}),
        pod("there", "sleep 600", node=SIMULATED, metadata={"labels": {"app": "web"}}),
    )  # fmt: skip
    await ready(upper, namespace, "here")
    await ready(upper, namespace, "there")
    ips = {(await get(upper, namespace, "pod", name))["status"]["podIP"]: name for name in ("here", "there")}

    for cluster, own in ((sandbox.lower[0], "here"), (sandbox.lower[1], "there")):

        async def both(cluster: Cluster = cluster) -> bool:
            return await addresses(cluster, namespace, "web") == set(ips)

        await eventually(both, what=f"both pods are endpoints in {cluster.name}")
        lower_pod = await get(cluster, namespace, "pod", own)

        async def named(cluster: Cluster = cluster, own: str = own) -> tuple[str, str, set[str]]:
            (piece,) = (
                await get(cluster, namespace, "endpointslices", labels="kubernetes.io/service-name=web")
            )["items"]
            assert piece["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] == "virtual-node.io"
            found = {ips[endpoint["addresses"][0]]: endpoint for endpoint in piece["endpoints"]}
            (other,) = set(found) - {own}
            too_much = {"targetRef", "nodeName", "zone", "hints"} & set(found[other])
            return found[own]["targetRef"]["uid"], found[own]["nodeName"], too_much

        wanted = lower_pod["metadata"]["uid"], lower_pod["spec"]["nodeName"], set[str]()
        await becomes(named, wanted, what=f"the endpoints in {cluster.name} name what is theirs")


async def test_an_endpoint_outside_the_cluster_is_reached(sandbox: Sandbox, upper: Cluster, namespace: str):
    """As a pod of another cluster on a flat network: an address that only routing leads to."""
    assert sandbox.bridge is not None

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text="from afar")

    async with served(web.get("/", answer), address=sandbox.bridge.address) as port:
        by_hand = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "far-1", "labels": {"kubernetes.io/service-name": "far"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [sandbox.bridge.address]}],
            "ports": [{"port": port}],
        }
        far = service("far")
        del far["spec"]["selector"]
        await create(upper, namespace, far, by_hand, pod("client", "sleep 600"))
        await ready(upper, namespace, "client")
        await run(upper, namespace, "client", "wget -q -O- http://far", wanted="from afar")


async def test_a_restart_mirrors_missed_changes(sandbox: Sandbox, upper: Cluster, namespace: str):
    """Deletions, changes and creations while the process was down."""
    lower, process = sandbox.lower[0], sandbox.processes[0]
    await create(
        upper, namespace, service("gone"), service("kept"), service("again"), pod("kept", "sleep 600")
    )
    await ready(upper, namespace, "kept")
    for name in ("gone", "kept", "again"):
        await lower_service(lower, namespace, name)
    before = await get(lower, namespace, "service", "kept")
    await process.stop()
    await upper.kubectl("-n", namespace, "delete", "service", "gone", "again")
    await create(upper, namespace, service("again", clusterIP="None"), service("new"))
    await process.start()
    await lower_service(lower, namespace, "new")

    async def caught_up() -> bool:
        found = await get(lower, namespace, "services")
        addresses = {
            item["metadata"]["name"]: item["spec"]["clusterIP"]
            for item in found["items"]
            if not item["metadata"]["name"].startswith("kubernetes-")
        }
        return set(addresses) == {"kept", "again", "new"} and addresses["again"] == "None"

    await eventually(caught_up, what="what was deleted is gone, what is new is there")
    assert await get(lower, namespace, "service", "kept") == before


async def test_the_first_pod_has_service_variables(sandbox: Sandbox, upper: Cluster, namespace: str):
    """Those of a namespace's very first pod hold the lower cluster IP."""
    await create(upper, namespace, service("early"))
    await create(upper, namespace, pod("first", "echo at $EARLY_SERVICE_HOST; sleep 600"))
    await ready(upper, namespace, "first")
    ip = (await lower_service(sandbox.lower[0], namespace, "early"))["spec"]["clusterIP"]

    async def output() -> str:
        return (await upper.kubectl("-n", namespace, "logs", "first")).stdout

    await becomes(output, f"at {ip}\n", what="the variable in the pod")


async def test_ip_families_are_those_of_the_lower_cluster(sandbox: Sandbox, upper: Cluster, namespace: str):
    """A dual-stack Service gets the one family of the lower cluster, and is not updated again."""
    lower = sandbox.lower[0]
    await create(
        upper, namespace, service("dual", ipFamilyPolicy="PreferDualStack"), pod("client", "sleep 600")
    )
    await ready(upper, namespace, "client")
    first = await lower_service(lower, namespace, "dual")
    assert first["spec"]["ipFamilies"] == ["IPv4"]
    # The next Service is mirrored after all updates of the first one.
    await create(upper, namespace, service("later"))
    await lower_service(lower, namespace, "later")
    assert await get(lower, namespace, "service", "dual") == first


async def test_changes_and_deletion_are_mirrored(sandbox: Sandbox, upper: Cluster, namespace: str):
    """New ports and endpoints; changes in the lower cluster are repaired, and all copies are deleted with the Service."""
    lower = sandbox.lower[0]
    await create(
        upper, namespace, service("web"), pod("web", SERVE.format("one")), pod("client", "sleep 600")
    )
    await ready(upper, namespace, "web")
    before = await lower_service(lower, namespace, "web")
    patch = {"spec": {"ports": [{"port": 81, "targetPort": 8080}], "sessionAffinity": "ClientIP"}}
    await upper.kubectl("-n", namespace, "patch", "service", "web", "--type=merge", "-p", json.dumps(patch))

    async def changed() -> bool:
        spec = (await get(lower, namespace, "service", "web"))["spec"]
        return bool(spec["ports"][0]["port"] == 81 and spec["sessionAffinity"] == "ClientIP")

    await eventually(changed, what="the new port below")
    await run(upper, namespace, "client", "wget -q -O- http://web:81", wanted="one")
    meddled = {"spec": {"selector": {"app": "evil"}, "type": "NodePort"}}
    await lower.kubectl("-n", namespace, "patch", "service", "web", "--type=merge", "-p", json.dumps(meddled))

    async def repaired() -> bool:
        found = await get(lower, namespace, "service", "web")
        return "selector" not in found["spec"] and found["spec"]["type"] == "ClusterIP"

    await eventually(repaired, what="the selector is gone again")
    await lower.kubectl("-n", namespace, "delete", "endpointslices", "-l", "kubernetes.io/service-name=web")

    async def back() -> bool:
        return bool(await addresses(lower, namespace, "web"))

    await eventually(back, what="the endpoints are back")
    assert (await get(lower, namespace, "service", "web"))["metadata"]["uid"] == before["metadata"]["uid"]
    await upper.kubectl("-n", namespace, "delete", "pod", "web")

    async def empty() -> bool:
        return not await addresses(lower, namespace, "web")

    await eventually(empty, what="no endpoint is left")
    await upper.kubectl("-n", namespace, "delete", "service", "web")

    async def gone() -> bool:
        # The Service of the upper API server stays for the other pod.
        copies = "virtual-node.io/upper-cluster,!virtual-node.io/api-server"
        return await none_of(lower, namespace, "services", labels=copies) and await none_of(
            lower, namespace, "endpointslices", labels="kubernetes.io/service-name=web"
        )

    await eventually(gone, what="nothing is left below")


async def test_a_headless_service_names_its_pods(sandbox: Sandbox, upper: Cluster, namespace: str):
    """Pods of a StatefulSet have their own names in the lower cluster's DNS."""
    template = pod("db", "sleep 600")
    template["spec"]["nodeSelector"] = {"kubernetes.io/hostname": REAL}
    stateful_set = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "db"},
        "spec": {
            "serviceName": "db",
            "replicas": 2,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": "db"}},
            "template": {"metadata": {"labels": {"app": "db"}}, "spec": template["spec"]},
        },
    }
    await create(upper, namespace, service("db", clusterIP="None"), stateful_set)
    for name in ("db-0", "db-1"):
        await ready(upper, namespace, name)
    assert (await lower_service(sandbox.lower[0], namespace, "db"))["spec"]["clusterIP"] == "None"
    ip = (await get(upper, namespace, "pod", "db-1"))["status"]["podIP"]
    await run(upper, namespace, "db-0", f"nslookup db-1.db.{namespace}.svc.cluster.local", wanted=ip)
    await run(upper, namespace, "db-0", f"nslookup db.{namespace}.svc.cluster.local", wanted=ip)


async def test_other_types_of_services(sandbox: Sandbox, upper: Cluster, namespace: str):
    """ExternalName stays, node ports and load balancers become cluster IPs, and types can change."""
    lower = sandbox.lower[0]
    outside = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "outside"},
        "spec": {"type": "ExternalName", "externalName": "db.example.com"},
    }
    await create(
        upper, namespace, pod("client", "sleep 600"), outside, service("port", type="NodePort"),
        service("balanced", type="LoadBalancer"), service("local", internalTrafficPolicy="Local"),
    )  # fmt: skip
    await ready(upper, namespace, "client")
    found = await lower_service(lower, namespace, "outside")
    assert (found["spec"]["type"], found["spec"]["externalName"]) == ("ExternalName", "db.example.com")
    await run(
        upper,
        namespace,
        "client",
        f"nslookup -type=cname outside.{namespace}.svc.cluster.local",
        wanted="db.example.com",
    )
    for name in ("port", "balanced"):
        spec = (await lower_service(lower, namespace, name))["spec"]
        assert spec["type"] == "ClusterIP"
        assert "nodePort" not in spec["ports"][0]
    assert (await lower_service(lower, namespace, "local"))["spec"]["internalTrafficPolicy"] == "Local"
    patch = {"spec": {"type": "ClusterIP", "externalName": None, "ports": [{"port": 80}]}}
    await upper.kubectl(
        "-n", namespace, "patch", "service", "outside", "--type=merge", "-p", json.dumps(patch)
    )

    async def changed() -> bool:
        return bool((await get(lower, namespace, "service", "outside"))["spec"]["type"] == "ClusterIP")

    await eventually(changed, what="no ExternalName any more")


async def test_an_unmanaged_service_is_never_touched(sandbox: Sandbox, upper: Cluster, namespace: str):
    """A lower one of the same name stays, even when the upper one is deleted; an event reports it."""
    lower = sandbox.lower[0]
    await create(upper, namespace, pod("client", "sleep 600"))
    await ready(upper, namespace, "client")
    await create(lower, namespace, service("taken", selector={"app": "theirs"}))
    before = await get(lower, namespace, "service", "taken")
    await create(upper, namespace, service("taken"))

    async def is_reported() -> bool:
        events = await get(upper, namespace, "events", fields="involvedObject.name=taken")
        return any(event["reason"] == "ServiceConflict" for event in events["items"])

    await eventually(is_reported, what="an event on the upper Service")
    ours = "kubernetes.io/service-name=taken,endpointslice.kubernetes.io/managed-by=virtual-node.io"
    assert await none_of(lower, namespace, "endpointslices", labels=ours)
    await upper.kubectl("-n", namespace, "delete", "service", "taken")
    # The next Service is mirrored after the deletion has been seen.
    await create(upper, namespace, service("later"))
    await lower_service(lower, namespace, "later")
    assert await get(lower, namespace, "service", "taken") == before


async def test_the_lower_clusters_own_services_stay(sandbox: Sandbox, upper: Cluster):
    """The lower default/kubernetes and kube-system/kube-dns are independent of the upper ones."""
    lower = sandbox.lower[0]
    before = [
        await get(lower, "default", "service", "kubernetes"),
        await get(lower, "kube-system", "service", "kube-dns"),
    ]
    await create(upper, "kube-system", service("kube-dns"), service("always-there"))
    try:
        copy = await lower_service(lower, "kube-system", "always-there")
        assert copy["metadata"]["labels"]["virtual-node.io/upper-cluster"]
        after = [
            await get(lower, "default", "service", "kubernetes"),
            await get(lower, "kube-system", "service", "kube-dns"),
        ]
        assert after == before
    finally:
        await upper.kubectl("-n", "kube-system", "delete", "service", "kube-dns", "always-there")

    async def gone() -> bool:
        return await none_of(lower, "kube-system", "service", name="always-there")

    await eventually(gone, what="the copy goes with its original")
    assert await get(lower, "kube-system", "service", "kube-dns") == before[1]


async def test_services_of_namespaces_without_pods_are_not_mirrored(
    sandbox: Sandbox, upper: Cluster, namespace: str
):
    """They are mirrored when the namespace gets its first pod in the cluster."""
    lower = sandbox.lower[0]
    await create(upper, namespace, service("web"), pod("elsewhere", "sleep 600", node=SIMULATED))
    await ready(upper, namespace, "elsewhere")
    await lower_service(sandbox.lower[1], namespace, "web")
    assert await none_of(lower, namespace, "service", name="web")
    await create(upper, namespace, pod("here", "sleep 600"))
    await lower_service(lower, namespace, "web")
