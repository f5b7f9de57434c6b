"""Quantities and counts formatted for users."""

from __future__ import annotations

import pytest

from controller_runtime.apimachinery import readable


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("memory", "24632884Ki", "23.5 GiB"),
        ("memory", "16Gi", "16 GiB"),
        ("memory", "1500M", "1.4 GiB"),
        ("memory", "1048575Ki", "1 GiB"),
        ("memory", "512", "512 B"),
        ("memory", "0", "0"),
        ("ephemeral-storage", "100Gi", "100 GiB"),
        ("hugepages-2Mi", "4Mi", "4 MiB"),
        ("cpu", "1500m", "1.5"),
        ("cpu", "64", "64"),
        ("cpu", "250m", "0.25"),
        ("cpu", "5m", "0.005"),
        ("cpu", "100", "100"),
        ("cpu", "63850m", "63.85"),
        ("cpu", "0", "0"),
        ("pods", "110", "110"),
        ("nvidia.com/gpu", "8", "8"),
        ("memory", "much", "much"),
    ],
)
def test_shows_a_quantity_in_its_usual_unit(name: str, value: str, shown: str):
    """Memory in binary bytes with one digit after the point, CPU in cores; an invalid quantity unchanged."""
    assert readable.text(name, value) == shown


@pytest.mark.parametrize(
    ("number", "words", "shown"),
    [
        (1, ("pod",), "1 pod"),
        (0, ("pod",), "0 pods"),
        (3, ("pod",), "3 pods"),
        (1, ("pod waits", "pods wait"), "1 pod waits"),
        (2, ("pod waits", "pods wait"), "2 pods wait"),
    ],
)
def test_singular_and_plural(number: int, words: tuple[str, ...], shown: str):
    """The noun, and the verb if there is one, agree with the number."""
    assert readable.count(number, *words) == shown


def test_many_names_are_cut():
    """To one line."""
    assert readable.some(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
