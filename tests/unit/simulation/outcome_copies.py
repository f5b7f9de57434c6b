"""What must hold of ConfigMaps, Secrets and tokens below once all is quiet: what pods need, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from clusterset.model import names
from tests.fakes.apiserver.rules import FINISHED
from tests.fakes.apiserver.server import Server
from tests.fakes.apiserver.storage import Body
from tests.unit.simulation.bodies import key_of, labels_of, uid_of
from tests.unit.simulation.process import CLUSTER_ID, Process
from virtual_node.translate.kinds import REFERENCED
from virtual_node.translate.pods import dependencies, service_account

if TYPE_CHECKING:
    from tests.unit.simulation.world import World

PLURALS = {"ConfigMap": "configmaps", "Secret": "secrets"}


def wrong_copies(world: World) -> Iterator[str]:
    """A sentence for each that is missing, left over, or not as its original."""
    for lower in world.lowers.values():
        wanted, held = _wanted(world, lower)
        running = {labels_of(pod).get(names.LABEL_UPPER_UID) for pod in lower.all("pods")}
        for (plural, key), users in held.items():
            if users & running and lower.find(plural, key) is None:
                yield f"{lower.name}: the name of {plural} {key} that a running pod may read is not held"
        for (plural, key), (original, users, process) in wanted.items():
            copy = lower.find(plural, key)
            is_used = bool(users & running)
            if copy is None and is_used:
                yield f"{lower.name}: {plural} {key} that a running pod needs is missing"
            if copy is None or not world.watchdog.is_ours(copy):
                continue
            kind = REFERENCED[original["kind"]]
            desired = kind.copy_of(original, process.context.view())
            assert desired is not None
            # A copy that only ended pods reference stays as it is until it is removed.
            if is_used and (patch := kind.patch(copy, desired, original)):
                yield f"{lower.name}: {plural} {key} is not as above: {json.dumps(patch)[:200]}"
        for plural in PLURALS.values():
            for copy in lower.all(plural):
                what = (plural, key_of(copy))
                if what not in wanted and what not in held and _is_left_over(world, lower, plural, copy):
                    yield f"{lower.name}: {plural} {key_of(copy)} is needed by nobody"


def wrong_tokens(world: World) -> Iterator[str]:
    """A sentence for each token Secret that is missing or has outlived its pod."""
    for lower in world.lowers.values():
        uids = {labels_of(secret).get(names.LABEL_TOKEN_OF) for secret in lower.all("secrets")} - {None}
        for uid in uids - world.watchdog.pods.keys():
            yield f"{lower.name}: a token Secret has outlived pod {uid}"
        for pod in lower.all("pods"):
            upper = world.watchdog.pods.get(labels_of(pod).get(names.LABEL_UPPER_UID, ""))
            if upper is None or upper["status"].get("phase") in FINISHED:
                continue
            if service_account.token_requests(upper) and uid_of(upper) not in uids:
                yield f"{lower.name}: the token Secret of {key_of(pod)} is missing"


def _wanted(
    world: World, lower: Server
) -> tuple[dict[tuple[str, str], tuple[Body, set[str], Process]], dict[tuple[str, str], set[str]]]:
    """Return what pods need, and the names of missing objects that are held for them.

    The first: plural and key of a copy → its original, the uids of the upper pods that need it, and their process. The
    second: plural and key → uids of the upper pods that can do without it. One that a pod cannot do without may be kept.
    """
    wanted: dict[tuple[str, str], tuple[Body, set[str], Process]] = {}
    held: dict[tuple[str, str], set[str]] = {}
    processes = {node: one for one in world.processes.values() if one.lower is lower for node in one.nodes}
    for pod in world.upper.all("pods"):
        process = processes.get(pod["spec"].get("nodeName", ""))
        if process is None:
            continue
        namespace = pod["metadata"]["namespace"]
        needs = [
            (PLURALS[need.kind], need.name, need.name, need.optional)
            for need in dependencies.dependencies(pod)
        ]
        if service_account.token_requests(pod):
            needs.append(("configmaps", "kube-root-ca.crt", service_account.root_ca_name(CLUSTER_ID), True))
        for plural, source, name, is_optional in needs:
            original = world.upper.find(plural, f"{namespace}/{source}")
            if original is not None:
                _, users, _ = wanted.setdefault((plural, f"{namespace}/{name}"), (original, set(), process))
                users.add(uid_of(pod))
            else:
                held.setdefault((plural, f"{namespace}/{name}"), set()).update(
                    {uid_of(pod)} if is_optional else ()
                )
    return wanted, held


def _is_left_over(world: World, lower: Server, plural: str, copy: Body) -> bool:
    """Whether nobody has a reason to keep a copy that no pod needs.

    A process keeps one as long as pods of others are in that namespace: they may need it, and it cannot know.
    """
    if not world.watchdog.is_ours(copy) or names.LABEL_TOKEN_OF in labels_of(copy):
        return False
    namespace, node = copy["metadata"]["namespace"], labels_of(copy).get(names.LABEL_NODE)
    own = next((process.nodes for process in world.processes.values() if node in process.nodes), [])
    there = [pod for pod in lower.all("pods") if pod["metadata"]["namespace"] == namespace]
    sharing = {labels_of(pod).get(names.LABEL_NODE) for pod in there} - {None, *own}
    annotations = copy["metadata"].get("annotations") or {}
    source = annotations.get(names.ANNOTATION_SOURCE, copy["metadata"]["name"])
    return not (sharing and world.upper.find(plural, f"{namespace}/{source}"))
