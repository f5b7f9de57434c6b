"""What must hold of Services and EndpointSlices below once all is quiet: those of namespaces with pods, and no other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.fakes.apiserver.server import Server
from tests.fakes.apiserver.storage import Body
from tests.unit.simulation.bodies import key_of, labels_of, uid_of
from tests.unit.simulation.process import CLUSTER_ID
from virtual_node.translate.services import endpoints, services

if TYPE_CHECKING:
    from tests.unit.simulation.world import World


def wrong_services(world: World) -> Iterator[str]:
    """A sentence for each that is missing, left over, or not as its original."""
    for lower in world.lowers.values():
        nodes = {node for one in world.processes.values() if one.lower is lower for node in one.nodes}
        used = {
            pod["metadata"]["namespace"]
            for pod in world.upper.all("pods")
            if pod["spec"].get("nodeName") in nodes
        }
        wanted = {
            key_of(service): service
            for service in world.upper.all("services")
            if service["metadata"]["namespace"] in used
        }
        for key, service in wanted.items():
            copy = lower.find("services", key)
            if copy is None:
                yield f"{lower.name}: Service {key} is missing"
            elif world.watchdog.is_ours(copy) and _differs(copy, service):
                yield f"{lower.name}: Service {key} is not as above"
        for copy in lower.all("services"):
            if world.watchdog.is_ours(copy) and key_of(copy) not in wanted:
                yield f"{lower.name}: Service {key_of(copy)} is wanted by nobody"
        yield from _wrong_slices(world, lower, wanted)


def _differs(copy: Body, service: Body) -> bool:
    namespace = service["metadata"]["namespace"]
    desired = services.lower_service(service, namespace=namespace, cluster_id=CLUSTER_ID)
    return bool(services.must_replace(copy, desired) or services.service_patch(copy, desired))


def _wrong_slices(world: World, lower: Server, wanted: dict[str, Body]) -> Iterator[str]:
    mirrored = {}
    for piece in world.upper.all("endpointslices"):
        namespace, name = piece["metadata"]["namespace"], labels_of(piece)["kubernetes.io/service-name"]
        service, copy = wanted.get(f"{namespace}/{name}"), lower.find("services", f"{namespace}/{name}")
        if service is None or service["spec"].get("type") == "ExternalName":
            continue
        if copy is None or world.watchdog.is_ours(copy):
            mirrored[f"{namespace}/{endpoints.slice_name(name, uid_of(piece), CLUSTER_ID)}"] = piece
    there = {key_of(one): one for one in lower.all("endpointslices") if world.watchdog.is_ours(one)}
    for key in sorted(mirrored.keys() - there.keys()):
        yield f"{lower.name}: EndpointSlice {key} is missing"
    for key in sorted(there.keys() - mirrored.keys()):
        yield f"{lower.name}: EndpointSlice {key} is wanted by nobody"
    for key in sorted(there.keys() & mirrored.keys()):
        if _endpoints(there[key]) != _endpoints(mirrored[key]):
            yield f"{lower.name}: EndpointSlice {key} is not as above"


def _endpoints(piece: Body) -> list[Body]:
    return [{"addresses": one["addresses"], "conditions": one["conditions"]} for one in piece["endpoints"]]
