"""Whether a Job of ours runs because the installation is being taken away, or because somebody applied it.

The chart's Job is a ``pre-delete`` hook. Helm runs it when a release is deleted, Argo CD (from 3.3 on) when an Application
is, and both create it at no other time. ``kubectl apply`` of what ``helm template`` prints, or kustomize, take it for one more
object: it runs at once, beside an installation that nobody wants to lose. The Job itself looks the same then; the Deployments
do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.errors import ConfigError
from controller_runtime.objects import Object
from controller_runtime.resources import Resource

_HELM = "meta.helm.sh/release-name"
"""On everything that Helm installs: https://helm.sh/docs/topics/advanced/"""
_ARGO = "argocd.argoproj.io/tracking-id"
"""On everything that Argo CD installs: https://argo-cd.readthedocs.io/en/stable/user-guide/resource_tracking/"""
_KUBECTL = "kubectl.kubernetes.io/last-applied-configuration"
"""On everything that was applied on the client's side."""
_JOBS = "app.kubernetes.io/component=uninstall"
_WHAT_NOW = (
    "nothing was done. Leave the Job out: `helm template --no-hooks`, skipHooks of kustomize, or uninstall.cleanup=false. "
    "To clean up, run `virtual-node cleanup` by hand before deleting (docs/install.md, Uninstall)"
)


async def uninstalls(client: Client, namespace: str, selector: str) -> None:
    """Let pass a hook that runs as one.

    Args:
        client: of the upper cluster.
        namespace: where our components run.
        selector: of their Deployments.

    Raises:
        ConfigError: it was applied as an ordinary object, or that cannot be told.
        ApiError: the upper cluster does not answer, or does not let us look.
    """
    found = await client.list(resources.DEPLOYMENTS, namespace=namespace, label_selector=selector)
    if not found.items:
        raise ConfigError(f"namespace {namespace} has no Deployment of {selector}; {_WHAT_NOW}")
    for one in found.items:
        if not runs_hooks(await _metadata(client, resources.DEPLOYMENTS, one)):
            raise ConfigError(
                f"Deployment {one.key} is neither Helm's nor Argo CD's, who run this Job when they delete it; {_WHAT_NOW}"
            )
    # What was applied beside Helm's may have failed with a conflict for each Deployment, which then shows no trace of it.
    jobs = await client.list(resources.JOBS, namespace=namespace, label_selector=f"{selector},{_JOBS}")
    for one in jobs.items:
        if made_by_kubectl(await _metadata(client, resources.JOBS, one)):
            raise ConfigError(f"Job {one.key} was made by kubectl; {_WHAT_NOW}")


async def _metadata(client: Client, resource: Resource, one: Object) -> dict[str, Any]:
    """Its metadata with managedFields, which lists leave out."""
    metadata: dict[str, Any] = (await client.get(resource, one.name, namespace=one.namespace))["metadata"]
    return metadata


def made_by_kubectl(metadata: Mapping[str, Any]) -> bool:
    """Whether somebody has created or applied an object with kubectl; from the object's metadata, with managedFields.

    Argo CD may call itself kubectl, too, and leaves its mark.
    """
    return _ARGO not in (metadata.get("annotations") or {}) and any(
        entry.get("manager", "").startswith("kubectl") and "f:spec" in (entry.get("fieldsV1") or {})
        for entry in metadata.get("managedFields") or ()
    )


def runs_hooks(metadata: Mapping[str, Any]) -> bool:
    """Whether what installed an object runs hooks in their time; from the object's metadata, with managedFields.

    Argo CD applies as kubectl does. Without its mark, an object of Helm's that was applied is in other hands now.
    """
    annotations = metadata.get("annotations") or {}
    if _ARGO in annotations:
        return True
    applied = _KUBECTL in annotations or any(
        _applied_without_helm(one) for one in metadata.get("managedFields") or ()
    )
    return _HELM in annotations and not applied


def _applied_without_helm(entry: Mapping[str, Any]) -> bool:
    """Whether somebody has applied the Deployment on the server's side, as a whole, who does not write Helm's annotation.

    From an entry of managedFields (https://kubernetes.io/docs/reference/using-api/server-side-apply/). Names of managers
    tell nothing: Helm's is that of its file, and everybody may choose one. Who applies but a few fields, such as replicas,
    does not apply the selector, which every Deployment must have.
    """
    fields = entry.get("fieldsV1") or {}
    annotations = fields.get("f:metadata", {}).get("f:annotations", {})
    return (
        entry.get("operation") == "Apply"
        and "f:selector" in fields.get("f:spec", {})
        and f"f:{_HELM}" not in annotations
    )
