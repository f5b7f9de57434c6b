"""What must hold once everything answers again and all is quiet: the lower clusters have what the upper one asks for."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from clusterset.model import names
from tests.fakes.apiserver.rules import FINISHED
from tests.fakes.apiserver.server import Server
from tests.fakes.apiserver.storage import Body
from tests.unit.simulation.bodies import is_ending, key_of, labels_of, uid_of
from tests.unit.simulation.outcome_copies import PLURALS, wrong_copies, wrong_tokens
from tests.unit.simulation.process import CLUSTER_ID, Process
from virtual_node.translate import endpoints
from virtual_node.translate.base.ownership import is_owned
from virtual_node.translate.base.view import View
from virtual_node.translate.kinds import SERVICES
from virtual_node.translate.pods import dependencies, lower_pod, update
from virtual_node.translate.pods import status as pod_status

if TYPE_CHECKING:
    from tests.unit.simulation.world import World


def what_is_wrong(world: World) -> list[str]:
    """A sentence for each thing."""
    return [
        *_wrong_pods(world),
        *wrong_copies(world),
        *wrong_tokens(world),
        *_wrong_services(world),
        *_wrong_namespaces(world),
    ]


def _wrong_pods(world: World) -> Iterator[str]:
    below: defaultdict[str, list[tuple[Server, Body]]] = defaultdict(list)
    for lower in world.lowers.values():
        for pod in lower.all("pods"):
            if world.watchdog.is_ours(pod):
                below[labels_of(pod)[names.LABEL_UPPER_UID]].append((lower, pod))
    processes = {node: process for process in world.processes.values() for node in process.nodes}
    above = {uid_of(pod): pod for pod in world.upper.all("pods")}
    for uid in below.keys() - above.keys():
        yield f"lower pods {[key_of(pod) for _, pod in below[uid]]} of an upper pod that is gone"
    for uid, upper in above.items():
        process = processes.get(upper["spec"].get("nodeName", ""))
        if process is None:
            continue
        what = f"upper pod {key_of(upper)} {uid} ({upper['status'].get('phase')})"
        if is_ending(upper):
            yield from _wrong_end(upper, below[uid], what)
        else:
            yield from _wrong_life(world, process, upper, below[uid], what)


def _wrong_end(upper: Body, below: list[tuple[Server, Body]], what: str) -> Iterator[str]:
    if below:
        yield f"{what} is being deleted, and its lower pod is there"
    elif not upper["metadata"].get("finalizers"):
        yield f"{what} never ends"
    elif upper["metadata"].get("deletionGracePeriodSeconds") != 0:
        yield f"{what} is not finally deleted"


def _wrong_life(
    world: World, process: Process, upper: Body, below: list[tuple[Server, Body]], what: str
) -> Iterator[str]:
    has_ended = upper["status"].get("phase") in FINISHED
    if len(below) > 1:
        yield f"{what} has {len(below)} lower pods"
    if not below:
        if not has_ended and not _is_excused(world, process, upper):
            yield f"{what} has no lower pod: {json.dumps(upper['status'])[:300]}"
        return
    [(lower, pod), *_] = below
    if lower is not process.lower:
        yield f"{what} has its lower pod in {lower.name}"
        return
    if has_ended and pod["status"]["phase"] not in FINISHED:
        yield f"{what}: its lower pod runs on"
        return
    desired = pod_status.upper_status(pod, upper)
    status = pod_status.status_patch(upper["status"], desired, uid=uid_of(upper))
    if status is not None:
        yield f"{what}: its status is not its lower pod's: {json.dumps(status['status'])[:300]}"
    options = process.context.options[upper["spec"]["nodeName"]]
    changes = update.pod_patch(pod, lower_pod.lower_pod(upper, options), upper, options)
    if changes.metadata_and_spec and not is_ending(pod):
        yield f"{what}: its lower pod does not follow: {json.dumps(changes.metadata_and_spec)[:300]}"


def _is_excused(world: World, process: Process, upper: Body) -> bool:
    """Whether an upper pod says why it has no lower one, and truly."""
    lower, namespace, said = process.lower, upper["metadata"]["namespace"], json.dumps(upper["status"])
    there = lower.find("pods", key_of(upper))
    if there is not None and not world.watchdog.is_ours(there):
        return "waiting" in said  # perhaps of something else that is to be mended first
    space = lower.find("namespaces", namespace)
    if space is not None and is_ending(space):
        return True
    for need in dependencies.dependencies(upper):
        plural, key = PLURALS[need.kind], f"{namespace}/{need.name}"
        is_there, copy = world.upper.find(plural, key) is not None, lower.find(plural, key)
        if not is_there and not need.optional:
            return "waiting" in said
        # An optional reference, too: the pod would read the other object.
        if copy is not None and not world.watchdog.is_ours(copy):
            return "DependencyConflict" in said
    return False


def _wrong_namespaces(world: World) -> Iterator[str]:
    for lower in world.lowers.values():
        for namespace in lower.all("namespaces"):
            name = namespace["metadata"]["name"]
            if names.LABEL_UPPER_CLUSTER not in labels_of(namespace) or world.upper.find("namespaces", name):
                continue
            if not world.watchdog.others_in(lower, name) and not is_ending(namespace):
                yield f"{lower.name}: namespace {name} has outlived its upper one"


def _wrong_services(world: World) -> Iterator[str]:
    """Those of namespaces with pods, and no other."""
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
            if world.watchdog.is_ours(copy) and key_of(copy) not in wanted and not _is_of_api_server(copy):
                yield f"{lower.name}: Service {key_of(copy)} is wanted by nobody"
        yield from _wrong_slices(world, lower, wanted)
        yield from _wrong_api_services(world, lower, used)


def _wrong_api_services(world: World, lower: Server, used: set[str]) -> Iterator[str]:
    """Every namespace with our pods has a Service with endpoints that leads to the upper API server, no other has."""
    running = {
        pod["metadata"]["namespace"] for pod in lower.all("pods") if names.LABEL_UPPER_UID in labels_of(pod)
    }
    for plural in ("services", "endpointslices"):
        there = {
            one["metadata"]["namespace"]
            for one in lower.all(plural)
            if _is_of_api_server(one) and is_owned(labels_of(one), CLUSTER_ID)
        }
        for namespace in sorted((running & used) - there):
            yield f"{lower.name}: {plural} of the API server are missing in {namespace}"
        for namespace in sorted(there - running - used):
            yield f"{lower.name}: {plural} of the API server are left in {namespace}"


def _is_of_api_server(body: Body) -> bool:
    return names.LABEL_API_SERVER in labels_of(body)


def _differs(copy: Body, service: Body) -> bool:
    view = View(cluster_id=CLUSTER_ID, nodes=("vn",))
    desired = SERVICES.copy_of(service, view)
    assert desired is not None
    return bool(SERVICES.must_replace(copy, desired) or SERVICES.patch(copy, desired, service))


def _wrong_slices(world: World, lower: Server, wanted: dict[str, Body]) -> Iterator[str]:
    mirrored = {}
    for piece in world.upper.all("endpointslices"):
        namespace, name = piece["metadata"]["namespace"], labels_of(piece)["kubernetes.io/service-name"]
        service, copy = wanted.get(f"{namespace}/{name}"), lower.find("services", f"{namespace}/{name}")
        if service is None or service["spec"].get("type") == "ExternalName":
            continue
        if copy is None or world.watchdog.is_ours(copy):
            mirrored[f"{namespace}/{endpoints.slice_name(name, uid_of(piece), CLUSTER_ID)}"] = piece
    there = {
        key_of(one): one
        for one in lower.all("endpointslices")
        if world.watchdog.is_ours(one) and not _is_of_api_server(one)
    }
    for key in sorted(mirrored.keys() - there.keys()):
        yield f"{lower.name}: EndpointSlice {key} is missing"
    for key in sorted(there.keys() - mirrored.keys()):
        yield f"{lower.name}: EndpointSlice {key} is wanted by nobody"
    for key in sorted(there.keys() & mirrored.keys()):
        if _endpoints(there[key]) != _endpoints(mirrored[key]):
            yield f"{lower.name}: EndpointSlice {key} is not as above"


def _endpoints(piece: Body) -> list[Body]:
    return [{"addresses": one["addresses"], "conditions": one["conditions"]} for one in piece["endpoints"]]
