"""Checks that the uninstall Job runs as a hook and was not applied as an ordinary object.

The chart's Job is a ``pre-delete`` hook. Helm creates it only when a release is deleted, and Argo CD (from
3.3 on) only when an Application is deleted. But ``kubectl apply`` of ``helm template`` output, or kustomize,
creates it as an ordinary object that runs immediately, although the installation must stay. The Job looks the
same in both cases, but the metadata of the installation's Deployments differs.
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
"""Annotation on everything that Helm installs: https://helm.sh/docs/topics/advanced/"""
_ARGO = "argocd.argoproj.io/tracking-id"
"""Annotation on everything that Argo CD installs:
https://argo-cd.readthedocs.io/en/stable/user-guide/resource_tracking/"""
_KUBECTL = "kubectl.kubernetes.io/last-applied-configuration"
"""Annotation on everything that was applied with client-side apply."""
_JOBS = "app.kubernetes.io/component=uninstall"
_WHAT_NOW = (
    "nothing was done. Leave the Job out: `helm template --no-hooks`, skipHooks of kustomize, or uninstall.cleanup=false. "
    "To clean up, run `virtual-node cleanup` by hand before deleting (docs/install.md, Uninstall)"
)


async def uninstalls(client: Client, namespace: str, selector: str) -> None:
    """Verify that the Job runs as an uninstall hook.

    Args:
        client: client of the upper cluster.
        namespace: namespace of our components.
        selector: label selector of our components' Deployments.

    Raises:
        ConfigError: the Job was, or may have been, applied as an ordinary object.
        ApiError: the upper cluster does not answer, or refuses a read.
    """
    found = await client.list(resources.DEPLOYMENTS, namespace=namespace, label_selector=selector)
    if not found.items:
        raise ConfigError(f"namespace {namespace} has no Deployment of {selector}; {_WHAT_NOW}")
    for one in found.items:
        if not runs_hooks(await _metadata(client, resources.DEPLOYMENTS, one)):
            raise ConfigError(
                f"Deployment {one.key} was not installed by Helm or Argo CD, which run this Job when they "
                f"delete it; {_WHAT_NOW}"
            )
    # An apply that failed with conflicts leaves no trace on Helm's Deployments, so Jobs are checked, too.
    jobs = await client.list(resources.JOBS, namespace=namespace, label_selector=f"{selector},{_JOBS}")
    for one in jobs.items:
        if made_by_kubectl(await _metadata(client, resources.JOBS, one)):
            raise ConfigError(f"Job {one.key} was made by kubectl; {_WHAT_NOW}")


async def _metadata(client: Client, resource: Resource, one: Object) -> dict[str, Any]:
    """Read the object's metadata with managedFields, which ``client.list`` drops."""
    metadata: dict[str, Any] = (await client.get(resource, one.name, namespace=one.namespace))["metadata"]
    return metadata


def made_by_kubectl(metadata: Mapping[str, Any]) -> bool:
    """Report whether an object was created or applied with kubectl, from its metadata with managedFields.

    Argo CD may also use the manager name kubectl, but it sets its tracking annotation.
    """
    return _ARGO not in (metadata.get("annotations") or {}) and any(
        entry.get("manager", "").startswith("kubectl") and "f:spec" in (entry.get("fieldsV1") or {})
        for entry in metadata.get("managedFields") or ()
    )


def runs_hooks(metadata: Mapping[str, Any]) -> bool:
    """Report whether Helm or Argo CD manages an object, from its metadata with managedFields.

    Argo CD applies as kubectl does, so its annotation decides. Without this annotation, an object that Helm
    installed and that was applied later is now managed by another tool, which does not know hooks.
    """
    annotations = metadata.get("annotations") or {}
    if _ARGO in annotations:
        return True
    applied = _KUBECTL in annotations or any(
        _applied_without_helm(one) for one in metadata.get("managedFields") or ()
    )
    return _HELM in annotations and not applied


def _applied_without_helm(entry: Mapping[str, Any]) -> bool:
    """Report whether a managedFields entry is a server-side apply of a whole Deployment without Helm's annotation.

    See https://kubernetes.io/docs/reference/using-api/server-side-apply/. Manager names prove nothing: Helm
    uses the name of its binary, and a client can choose any. An apply of only some fields, such as replicas,
    does not contain the selector, which every Deployment must have.
    """
    fields = entry.get("fieldsV1") or {}
    annotations = fields.get("f:metadata", {}).get("f:annotations", {})
    return (
        entry.get("operation") == "Apply"
        and "f:selector" in fields.get("f:spec", {})
        and f"f:{_HELM}" not in annotations
    )
