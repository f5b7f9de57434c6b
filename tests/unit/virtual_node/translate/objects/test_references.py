"""The content of copied ConfigMaps and Secrets."""

from __future__ import annotations

from typing import Any

import pytest

from virtual_node.translate.objects.references import data_changes

DATA = {"data": {"a": "1"}}


@pytest.mark.parametrize(
    ("lower", "desired", "patch"),
    [
        (DATA, DATA, {}),
        ({"data": {"a": "0", "b": "2"}}, DATA, {"data": {"a": "1", "b": None}}),
        (DATA, {}, {"data": {"a": None}}),
        (DATA, {**DATA, "immutable": True}, {"immutable": True}),
        ({**DATA, "immutable": True}, {**DATA, "immutable": True}, {}),
        ({**DATA, "immutable": True}, DATA, {"immutable": None}),
        ({**DATA, "immutable": True}, {**DATA, "immutable": False}, {"immutable": None}),
        ({**DATA, "type": "Opaque"}, {**DATA, "type": "tls"}, {"type": "tls"}),
    ],
)
def test_a_patch_makes_the_content_that_of_the_upper_object(
    lower: dict[str, Any], desired: dict[str, Any], patch: dict[str, Any]
):
    """Entries of other clients and a mark that is gone in the upper cluster are removed."""
    assert data_changes(lower, desired) == patch
