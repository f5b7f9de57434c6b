"""Whether a Job of ours runs because the installation is being taken away, or because somebody applied it.

The chart's Job is a ``pre-delete`` hook. Helm runs it when a release is deleted, Argo CD (from 3.3 on) when an Application
is, and both create it at no other time. ``kubectl apply`` of what ``helm template`` prints, or kustomize, take it for one more
object: it runs at once, beside an installation that nobody wants to lose. The Job itself looks the same then; the Deployments
do not.
"""

from __future__ import annotations

from collections.abc import Mapping

from controller_runtime import resources
from controller_runtime.client import Client
from controller_runtime.errors import ConfigError

_HELM = "meta.helm.sh/release-name"
"""On everything that Helm installs: https://helm.sh/docs/topics/advanced/"""
_ARGO = "argocd.argoproj.io/tracking-id"
"""On everything that Argo CD installs: https://argo-cd.readthedocs.io/en/stable/user-guide/resource_tracking/"""
_KUBECTL = "kubectl.kubernetes.io/last-applied-configuration"
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
    for deployment in found.items:
        if not runs_hooks(deployment.annotations):
            raise ConfigError(
                f"Deployment {deployment.key} is neither Helm's nor Argo CD's, who run this Job when they delete it; {_WHAT_NOW}"
            )


def runs_hooks(annotations: Mapping[str, str]) -> bool:
    """Whether what installed an object runs hooks in their time; from the object's annotations.

    Argo CD applies as kubectl does. Without its mark, an object of Helm's that was applied is in other hands now.
    """
    return _ARGO in annotations or (_HELM in annotations and _KUBECTL not in annotations)
