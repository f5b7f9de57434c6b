"""Rewrites of image names by prefix. No IO."""

from __future__ import annotations

from collections.abc import Sequence

from controller_runtime.api.overrides.config import ImageRewrite
from controller_runtime.api.policy.images import repository_name

_LONGEST = 4096
"""Maximum characters of an image that is rewritten. Valid names are shorter."""


def rewritten(image: str, rewrites: Sequence[ImageRewrite]) -> str:
    """Return an image under the first rewrite whose ``from`` begins its full name; unchanged if there is none.

    A prefix ends at a boundary: ``docker.io/library/nginx`` matches ``nginx:1.29`` and not ``nginx-exporter``.
    """
    if not rewrites or not image or len(image) > _LONGEST:
        return image
    name = repository_name(image)
    for one in rewrites:
        rest = name.removeprefix(one.source)
        if len(rest) < len(name) and (one.source.endswith("/") or not rest or rest[0] in "/:@"):
            return one.to + rest
    return image
