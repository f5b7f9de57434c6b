"""The Service of an API server, and which cluster's a pod asks for in annotation ``kubernetes-service``. No IO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from clusterset.model import names

Choice = Literal["Auto", "Lower", "Upper"]
AUTO: Final = "Auto"
LOWER: Final = "Lower"
UPPER: Final = "Upper"
SERVICE = ("default", "kubernetes")
"""Namespace and name of the Service of the API server, which every cluster has."""
_SHOWN = 40
_CHOICES: Mapping[str, Choice] = {"auto": AUTO, "lower": LOWER, "upper": UPPER}


def requested(annotations: Mapping[str, str]) -> Choice | None:
    """Return the choice in a pod's annotation, in any letter case; None: the annotation is missing or empty.

    Raises:
        ValueError: the value is not valid; the message names the annotation.
    """
    text = annotations.get(names.ANNOTATION_KUBERNETES_SERVICE) or ""
    if not text or (choice := _CHOICES.get(text.lower())) is not None:
        return choice if text else None
    raise ValueError(
        f"annotation {names.ANNOTATION_KUBERNETES_SERVICE}: {text[:_SHOWN]!r}: write upper, lower or auto"
    )
