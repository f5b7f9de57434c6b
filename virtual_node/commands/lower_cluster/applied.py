"""What ``lower-cluster`` creates in a cluster: the mark on its objects, and programs that it applies, such as a name server."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from clusterset.model import names
from controller_runtime.apimachinery import readable
from controller_runtime.client.client import Client, PatchType, find
from controller_runtime.client.served_version import first_served
from controller_runtime.errors import ConfigError, NotFound
from controller_runtime.process import terminal
from controller_runtime.resources import Resource
from virtual_node.commands.lower_cluster import waiting
from virtual_node.config import program

_BY = "join"
_GONE_SECONDS = 60


_CONSTRAINTS = Resource(
    "security.openshift.io", "v1", "securitycontextconstraints", "SecurityContextConstraints"
)
_IDS = frozenset({"runAsUser", "runAsGroup", "fsGroup"})


async def admissible(client: Client, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a Pod or Deployment as its cluster admits it: on OpenShift without user and group IDs.

    OpenShift's default constraints refuse IDs outside the range of the namespace, and set missing ones. The chart does the same.

    Raises:
        ApiError: discovery failed.
    """
    template = body["spec"].get("template") or body if "spec" in body else {}
    context = (template.get("spec") or {}).get("securityContext") or {}
    if not context.keys() & _IDS:
        return body
    try:
        await first_served(client, [_CONSTRAINTS])
    except NotFound:
        return body
    context = {field: value for field, value in context.items() if field not in _IDS}
    template = {**template, "spec": {**template["spec"], "securityContext": context}}
    return (
        {**body, "spec": {**body["spec"], "template": template}} if "template" in body["spec"] else template
    )


async def apply(
    client: Client, resource: Resource, body: Mapping[str, Any], *, step: str, by: str, where: str
) -> None:
    """Create or update an object with server-side apply, unless it exists without our mark; say what was done.

    Args:
        client: client of the cluster.
        resource: the object's resource.
        body: the object.
        step: name of the step in lines of progress.
        by: the action that applies it.
        where: upper or lower.

    Raises:
        ConfigError: the object is not ours.
    """
    metadata = body["metadata"]
    name, namespace = metadata["name"], metadata["namespace"]
    found = await find(client, resource, name, namespace=namespace)
    if found is not None and not is_marked(found):
        raise ConfigError(
            f"the {where} cluster has a {body['kind']} {namespace}/{name} that '{program.name('lower-cluster')} {by}' "
            "did not make: delete it first, or continue by hand with the printed objects"
        )
    params = {"fieldManager": f"virtual-node-{step}", "force": "true"}
    made = await client.patch(
        resource,
        name,
        marked(await admissible(client, body)),
        namespace=namespace,
        patch_type=PatchType.APPLY,
        params=params,
    )
    if found is None:
        say(step, f"created {body['kind']} {namespace}/{name}")
    elif found["metadata"].get("resourceVersion") != made["metadata"].get("resourceVersion", ""):
        say(step, f"updated {body['kind']} {namespace}/{name}")


async def remove(
    client: Client, kinds: Sequence[Resource], name: str, *, namespace: str, step: str, dry: bool
) -> None:
    """Delete the objects of a name that ``apply`` created, in the reverse order of their kinds; wait until they are gone.

    Args:
        client: client of the cluster; that of a dry run prints and deletes nothing.
        kinds: their resources, in the order of creation.
        name: their name.
        namespace: their namespace.
        step: name of the step in lines of progress.
        dry: whether the client is that of a dry run.
    """
    removed = []
    for resource in reversed(kinds):
        found = await find(client, resource, name, namespace=namespace)
        if found is not None and is_marked(found):
            await client.delete(
                resource,
                name,
                namespace=namespace,
                uid=found["metadata"]["uid"],
                propagation_policy="Foreground",
            )
            removed.append(resource)
    if not removed:
        return
    if dry:
        say(step, f"would remove {namespace}/{name}")
        return

    # Its pods would count as contents of the namespace, which is deleted only if it is empty.
    async def is_gone() -> bool:
        return not [each for each in removed if await find(client, each, name, namespace=namespace)]

    await waiting.until(is_gone, seconds=_GONE_SECONDS)
    say(step, f"removed {namespace}/{name}")


def say(step: str, line: str) -> None:
    """Print a line of progress of a step."""
    terminal.block(f"{step:<8}  {readable.one_line(line)}")


def marked(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of an object with the annotation that marks objects created by ``join``."""
    metadata = body["metadata"]
    annotations = {**(metadata.get("annotations") or {}), names.ANNOTATION_CREATED_BY: _BY}
    return {**body, "metadata": {**metadata, "annotations": annotations}}


def is_marked(found: Mapping[str, Any]) -> bool:
    """Report whether ``join`` created an object."""
    return annotations_of(found).get(names.ANNOTATION_CREATED_BY) == _BY


def annotations_of(found: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the annotations of an object."""
    return (found.get("metadata") or {}).get("annotations") or {}


def secret_data(secret: Mapping[str, Any]) -> dict[str, str]:
    """Return the decoded data of a Secret."""
    data = secret.get("data") or {}
    return {key: base64.b64decode(value).decode(errors="replace") for key, value in data.items()}
