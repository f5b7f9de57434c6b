"""EndpointSlices that others add to the lower copy of a Service.

A copied Service has no selector, so the lower cluster mirrors any ``Endpoints`` object of its name to a slice. Users can also
create slices with its name. Requests to the Service then also reach these addresses. virtual-node never changes such objects,
and writes an event about them.

Source: pkg/controller/endpointslicemirroring of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from controller_runtime.apimachinery import readable
from controller_runtime.objects import Object
from virtual_node.translate.services.endpoints import LABEL_MANAGED_BY, LABEL_SERVICE, MANAGED_BY

_OF_SELECTORS = "endpointslice-controller.k8s.io"
_MIRRORING = "endpointslicemirroring-controller.k8s.io"
SELECTOR = f"{LABEL_SERVICE},{LABEL_MANAGED_BY} notin ({_OF_SELECTORS},{MANAGED_BY})"
"""Selects the slices of neither Services with a selector nor of virtual nodes, so a watch of them costs little."""
_SHOWN = 3
"""Slices that a message names."""


class Slice(NamedTuple):
    """A foreign slice of a Service."""

    name: str
    manager: str


def lower_service(found: Object) -> tuple[str, ...]:
    """Return the key of the lower Service of a slice, for an index."""
    name = found.labels.get(LABEL_SERVICE)
    return (f"{found.namespace}/{name}",) if name else ()


def shrunk(found: Object) -> Object:
    """Return a slice without its endpoints, which are not needed."""
    return Object(found.metadata, found.api_version, found.kind, None, None, None).without_metadata(
        "annotations"
    )


def message(service: str, slices: Sequence[Slice]) -> str:
    """Return what is wrong with a Service that has foreign slices, and the next step; empty: it has none.

    Args:
        service: key of the lower Service.
        slices: its foreign slices.
    """
    if not slices:
        return ""
    namespace, _, name = service.partition("/")
    # The controller would create a mirrored slice again.
    remedies = {
        f"Endpoints {name}" if one.manager == _MIRRORING else f"EndpointSlice {one.name}" for one in slices
    }
    return (
        f"others add addresses to the copy of this Service, and a part of its requests goes there: EndpointSlice "
        f"{readable.some(sorted(one.name for one in slices), limit=_SHOWN)}. In namespace {namespace} of the lower cluster, "
        f"delete {readable.some(sorted(remedies), limit=_SHOWN)}, or rename the Service"
    )
