"""No translation multiplies two dimensions of an object without subtracting the product from the budget."""

from __future__ import annotations

from typing import Any

import pytest

from controller_runtime.apimachinery.translation_budget import TranslationBudget
from tests.unit.scaling.followed import FOLLOWED
from tests.unit.scaling.measure import Kind, assert_linear
from tests.unit.scaling.pods import PODS
from tests.unit.scaling.profiles import PROFILES
from tests.unit.scaling.services import SERVICES
from tests.unit.scaling.swarms import SWARMS

KINDS = (PODS, SERVICES, *FOLLOWED, SWARMS, PROFILES)
"""Add other kinds here: a table of dimensions, a function that makes an object, and its translations."""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_translations_grow_with_the_bytes_of_the_object(kind):
    assert_linear(kind)


def _repeating(sizes: Any) -> list[str]:
    return ["a" * sizes["bytes"], *(["b"] * sizes["items"])]


def _product(source: list[str]) -> Any:
    def uncounted(_budget: TranslationBudget) -> Any:
        return [source[0] for _ in source]

    def counted(budget: TranslationBudget) -> Any:
        budget.add(len(source) * len(source[0]), "Items x bytes", "use fewer")
        return uncounted(budget)

    def slow(_budget: TranslationBudget) -> Any:
        return sum(character == item for item in source[1:] for character in source[0])

    return {"uncounted": uncounted, "counted": counted, "slow": slow}


@pytest.mark.parametrize(("how", "error"), [("uncounted", "output"), ("slow", "time"), ("counted", "")])
def test_a_product_is_found_unless_it_is_counted(how, error):
    """The measurement itself."""
    kind = Kind("Text", {"bytes": 150, "items": 150}, _repeating, lambda source: [_product(source)[how]])
    if not error:
        assert_linear(kind)
        return
    with pytest.raises(AssertionError, match=f"bytes x items: {error} grows"):
        assert_linear(kind)
