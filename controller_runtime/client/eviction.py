"""The eviction API: deletes a pod if disruption budgets allow it. The pod's controller then creates another pod.

Source: https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/
"""

from __future__ import annotations

from controller_runtime import errors, resources
from controller_runtime.client.client import Client
from controller_runtime.objects import ObjectMeta

NO_DRY_RUN = "does not support dry run"
"""Text of the API server's error if an admission webhook has side effects. Then a dry run is impossible."""
_SEVERAL_BUDGETS = "more than one PodDisruptionBudget"
"""Part of the message for a pod that several budgets match. API servers refuse its eviction with code 500."""


async def evict(client: Client, pod: ObjectMeta, *, dry_run: bool = False) -> None:
    """Evict a pod if its UID and, unless empty, its resourceVersion are unchanged; POST ``pods/eviction``, policy/v1.

    Raises:
        TooManyRequests: a disruption budget forbids the eviction now (``is_budget``) or always (``is_final``), or
            the server limits requests; ``retry_after`` may have the seconds until the next attempt.
        NotFound: the pod does not exist.
        Conflict: the pod has changed, or another pod has its name.
        ApiError: another error of the request.
    """
    preconditions = {"uid": pod.uid} | (
        {"resourceVersion": pod.resource_version} if pod.resource_version else {}
    )
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": preconditions},
    }
    try:
        answer = await client.create(
            resources.PODS,
            body,
            namespace=pod.namespace,
            name=pod.name,
            subresource="eviction",
            params={"dryRun": "All"} if dry_run else None,
        )
        if answer.get("kind") == "Status" and answer.get("status") == "Failure":  # despite HTTP code 201
            raise errors.error_from_status(answer)
    except errors.ApiError as error:
        if _SEVERAL_BUDGETS not in error.message:
            raise
        raise errors.TooManyRequests(error.message, code=429, status=error.status) from error


async def rehearse(client: Client, pod: ObjectMeta) -> None:
    """Check by a dry run that the pod can be evicted as soon as its budget allows it.

    Raises:
        TooManyRequests: the eviction would always be refused (``is_final``).
        ApiError: another error of the request.
    """
    try:
        await evict(client, pod, dry_run=True)
    except (errors.NotFound, errors.Conflict):
        return  # the caller's next request fails in the same way
    except errors.BadRequest as error:
        if NO_DRY_RUN not in error.message:
            raise
    except errors.TooManyRequests as error:
        if is_final(error):
            raise


def is_budget(error: errors.ApiError) -> bool:
    """Report whether a disruption budget refused the eviction; if False, budgets were not evaluated."""
    causes = (error.status.get("details") or {}).get("causes") or ()
    return is_final(error) or any(cause.get("reason") == "DisruptionBudget" for cause in causes)


def is_final(error: errors.ApiError) -> bool:
    """Report whether the eviction is refused until a disruption budget is changed, because several match the pod."""
    return _SEVERAL_BUDGETS in error.message
