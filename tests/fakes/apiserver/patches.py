"""Apply merge patches, strategic merge patches and JSON patches as an API server does."""

from __future__ import annotations

from typing import Any

import jsonpatch

from controller_runtime.api.strategic_merge import merged
from controller_runtime.client.client import PatchType
from controller_runtime.errors import Invalid


def patched(stored: Any, patch: Any, patch_type: PatchType) -> Any:
    """Return an object with a patch applied; neither argument changes.

    Raises:
        Invalid: a JSON patch does not apply.
    """
    if patch_type is PatchType.JSON:
        try:
            return jsonpatch.apply_patch(stored, patch)
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
            raise Invalid(
                "the server rejected our request due to an error in our request", code=422, reason="Invalid"
            ) from error
    return merged(stored, patch, strategic=patch_type is PatchType.STRATEGIC)
