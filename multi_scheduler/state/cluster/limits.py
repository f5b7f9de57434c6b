"""Limits on what tenants and lower clusters can make the multi-scheduler compute and store, and readers that apply them.

Objects of honest users are far below the limits. A value of a lower cluster that cannot be read counts as missing. No IO.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from clusterset.model import names
from controller_runtime.apimachinery import quantity

MOST_TERMS = 10
"""Number of pod affinity terms or spread constraints of a kind that are evaluated, because each is compared with every pod
of a cluster, and a pod may have thousands of them. The lower scheduler applies all of them."""
MOST_POD_REQUIREMENTS = 20
"""Number of labels, expressions and values in all terms of a kind. Later terms are not evaluated."""
MOST_NODE_REQUIREMENTS = 100
"""Number of a pod's node labels, terms, expressions and tolerations. A pod with more is rejected."""
MOST_NODE_VALUES = 1000
"""Number of values in a pod's node expressions. A pod with more is rejected."""
MOST_CHARACTERS = 32_768
"""Characters of a pod's node requirements as JSON. A pod with more is rejected."""
_LONGEST_KEY = 1000
"""Characters of a cache key; longer ones are hashed."""
MOST_PORTS = 100
"""Number of host ports of a lower pod that are read."""
MOST_LABELS, MOST_LABEL_CHARACTERS = 64, 4096
"""Number of labels of a lower pod that are kept, and their characters; more would fill the memory with few pods."""
MOST_TERM_CHARACTERS = 4096
"""Characters, as JSON, of the pod anti-affinity terms of a lower pod that are kept."""
MOST_TAINTS = 32
"""Number of taints of a lower node that are read."""
MOST_RESOURCES = 64
"""Number of resources of a lower node or pod that are read, the native ones first."""
MOST_COLUMNS = 256
"""Number of resources that are counted over all nodes of a lower cluster. Further ones count as not offered."""


class TooManyRequirementsError(ValueError):
    """A pod or its volumes have more node requirements than are evaluated."""


def amounts(quantities: Any) -> dict[str, int]:
    """Return the quantities of a lower object by resource, without unreadable ones; negative ones become 0."""
    if not isinstance(quantities, Mapping):
        return {}
    items: Iterable[tuple[str, Any]] = quantities.items()
    if len(quantities) > MOST_RESOURCES:
        items = sorted(items, key=lambda item: "/" in item[0])[:MOST_RESOURCES]
    found = {}
    for resource, value in items:
        if (count := amount(resource, value)) is not None:
            found[resource] = max(0, count)
    return found


def amount(resource: str, value: Any) -> int | None:
    """Return a quantity of a lower object in the unit of its resource; None: unreadable."""
    try:
        return quantity.of(resource, value) if isinstance(value, (str, int, float)) else None
    except ValueError:
        return None


def labels(found: Mapping[str, str]) -> dict[str, str]:
    """Return the first labels of a lower pod within the limits, and those of this project before all others."""
    kept: dict[str, str] = {}
    size = 0
    for key, value in sorted(found.items(), key=lambda label: names.DOMAIN not in label[0]):
        size += len(key) + len(value)
        if len(kept) == MOST_LABELS or size > MOST_LABEL_CHARACTERS:
            break
        kept[key] = value
    return kept


def terms(found: Iterable[Any]) -> list[Any]:
    """Return the first pod anti-affinity terms of a lower pod within the limits."""
    kept: list[Any] = []
    size = 0
    for term in found:
        size += len(msgspec.json.encode(term))
        if len(kept) == MOST_TERMS or size > MOST_TERM_CHARACTERS:
            break
        kept.append(term)
    return kept


def taints(found: Any) -> list[dict[str, Any]]:
    """Return the readable taints of a lower node."""
    if not isinstance(found, list):
        return []
    kept = (
        {field: one.get(field) for field in ("key", "value", "effect")}
        for one in found
        if isinstance(one, dict)
    )
    return [one for one in kept if all(isinstance(value or "", str) for value in one.values())][:MOST_TAINTS]


def selector_size(selector: Mapping[str, Any] | None) -> int:
    """Return the number of labels, expressions and values of a LabelSelector."""
    if not selector:
        return 0
    expressions = selector.get("matchExpressions") or ()
    return len(selector.get("matchLabels") or ()) + sum(
        1 + len(expression.get("values") or ()) for expression in expressions
    )


def check_size(spec: Mapping[str, Any], terms: Iterable[Mapping[str, Any]]) -> None:
    """Check the number of a pod's node requirements.

    Args:
        spec: nodeSelector and tolerations.
        terms: all required node selector terms, also of volumes.

    Raises:
        TooManyRequirementsError: there are more than are evaluated.
    """
    count = len(spec.get("nodeSelector") or ()) + len(spec.get("tolerations") or ())
    values = 0
    for term in terms:
        expressions = [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]
        count += 1 + len(expressions)
        values += sum(len(expression.get("values") or ()) for expression in expressions)
    if count > MOST_NODE_REQUIREMENTS or values > MOST_NODE_VALUES:
        raise TooManyRequirementsError(
            f"the pod or its volumes have {count} node selectors and tolerations with {values} values, and the limits are "
            f"{MOST_NODE_REQUIREMENTS} and {MOST_NODE_VALUES}"
        )


def cache_key(spec: Mapping[str, Any]) -> str:
    """Return a text that is equal for equal node requirements.

    Raises:
        TooManyRequirementsError: there are more than are evaluated.
    """
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    if len(text) > MOST_CHARACTERS:
        raise TooManyRequirementsError(
            f"the node selectors and tolerations of the pod have {len(text)} characters as JSON, and the limit is "
            f"{MOST_CHARACTERS}"
        )
    return text if len(text) <= _LONGEST_KEY else hashlib.sha256(text.encode()).hexdigest()


def subtract(counter: Counter[str], amounts: Mapping[str, int]) -> None:
    """Subtract amounts, and remove keys with a result of 0, so that unused keys do not accumulate."""
    counter.subtract(amounts)
    for key in amounts:
        if not counter[key]:
            del counter[key]
