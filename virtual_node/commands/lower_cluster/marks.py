"""Lines of progress, and the mark on objects that ``lower-cluster`` created."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterset.model import names
from controller_runtime.apimachinery import readable
from controller_runtime.process import terminal

_BY = "join"


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
