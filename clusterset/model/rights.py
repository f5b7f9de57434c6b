"""Placeholders in tables of rights (``controller_runtime/rights.py``), replaced by the names of one installation."""

from __future__ import annotations

PROFILE_NAMESPACE = "<profiles>"
"""Placeholder in ``Right.namespace`` for the namespace of the ClusterProfiles."""
VIRTUAL_NODE = "<virtual-node>"
"""Placeholder in ``Right.names`` for the name of each virtual node."""
LEASE = "<lease>"
"""Placeholder in ``Right.names`` for the Lease by which replicas of the virtual node elect a leader."""
EXTENDER_LEASE = "<extender-lease>"
"""Placeholder in ``Right.names`` for the Lease of the multi-scheduler's replica that answers."""
LEASES = "<component-lease>"
"""Placeholder in ``Right.names`` for each Lease by which replicas of any component elect a leader, and the extender's."""
TOKEN_SECRET = "<token-secret>"  # noqa: S105 - a placeholder
"""Placeholder in ``Right.names`` for each Secret with a renewed token for a lower cluster."""
INSPECTION_HISTORY = "<inspection-history>"
"""Placeholder in ``Right.names`` for the ConfigMap with the history of scheduled inspections."""
WEBHOOK_CONFIGURATION = "<webhook-configuration>"
"""Placeholder in ``Right.names`` for the name of both webhook configurations."""
EXTENDER_SECRET = "<extender-secret>"  # noqa: S105 - a placeholder
"""Placeholder in ``Right.names`` for both Secrets with the extender's own certificates; has no value if a user
supplies the certificates."""
WEBHOOK_SECRET = "<webhook-secret>"  # noqa: S105 - a placeholder
"""Placeholder in ``Right.names`` for the Secret with the webhook's certificates; has no value if a user
supplies the certificates."""
