"""Decides the responses to admission requests. Does no IO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from webhook import admission
from webhook.mutation import mutate, templates, validation
from webhook.mutation.patch import pod_patch


class Knowledge(Protocol):
    """State of the upper cluster (``webhook.state``)."""

    def surroundings(self, pod: Mapping[str, Any], namespace: str) -> mutate.Surroundings:
        """Return the state that the mutation of a pod depends on."""


def review_pod(request: admission.Request, knowledge: Knowledge) -> bytes:
    """Return the response for a pod: a patch with the mutation, or a denial with the reason."""
    if request.kind not in {"", "Pod"} or request.operation not in {"", "CREATE"}:
        return admission.allowed(request)
    pod = request.object
    if not isinstance(pod.get("spec"), dict) or not isinstance(pod.get("metadata"), dict):
        return admission.denied(request, "object: a Pod with metadata and spec was expected", code=400)
    namespace = request.namespace or str(pod["metadata"].get("namespace") or "")
    try:
        if not mutate.needs_mutation(pod, namespace):
            return admission.allowed(request)
        changed = mutate.mutate(pod, knowledge.surroundings(pod, namespace))
    except validation.RefusedError as error:
        return admission.denied(request, str(error))
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        # The API server sends well-formed pods, so only another client sends such a request.
        return admission.denied(request, f"object: not a Pod as core/v1 has it ({error})", code=400)
    warnings = list(validation.unused(pod["metadata"].get("annotations")))
    return admission.allowed(request, patch=pod_patch(pod, changed), warnings=warnings)


def review_workload(request: admission.Request) -> bytes:
    """Return the response for a workload: warnings about its pod template, or a denial if all its pods would be denied."""
    try:
        path, template = templates.pod_template(request.kind, request.object)
        if request.operation not in {"", "CREATE", "UPDATE"} or not templates.is_virtual(template):
            return admission.allowed(request)
        found = templates.warnings(request.kind, request.namespace, template, path)
        if problem := templates.invalid(template, path):
            if not _may_stay(request, problem):
                return admission.denied(request, problem)
            found.insert(0, problem)
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        return admission.denied(request, f"object: not a {request.kind} ({error})", code=400)
    return admission.allowed(request, warnings=found)


def _may_stay(request: admission.Request, problem: str) -> bool:
    """Report whether an invalid workload is admitted: it is being deleted, or was invalid before in the same way.

    Controllers update workloads, too, for example to remove a finalizer. A denial would then prevent the
    deletion.
    """
    if (request.object.get("metadata") or {}).get("deletionTimestamp"):
        return True
    path, template = templates.pod_template(request.kind, request.old_object)
    return templates.invalid(template, path) == problem
