"""Quantities are parsed exactly as apimachinery does."""

from __future__ import annotations

import math
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_runtime.apimachinery import quantity

_LARGEST = 2**63 - 1
_FACTORS = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", 1)},
}


@pytest.mark.parametrize(
    ("text", "milli", "amount"),
    [
        ("0", 0, 0),
        ("1", 1000, 1),
        ("+1", 1000, 1),
        ("-1", -1000, -1),
        ("007", 7000, 7),
        ("100m", 100, 1),
        ("1.5", 1500, 2),
        ("1.", 1000, 1),
        (".5", 500, 1),
        ("0.0001", 1, 1),
        ("1n", 1, 1),
        ("1u", 1, 1),
        ("-100m", -100, 0),
        ("1k", 10**6, 1000),
        ("1Ki", 1024 * 1000, 1024),
        ("1.5Gi", 1536 * 2**20 * 1000, 1536 * 2**20),
        ("1e3", 10**6, 1000),
        ("1E3", 10**6, 1000),
        ("1E", 10**21, 10**18),
        ("12e-1", 1200, 2),
        ("1e+2", 10**5, 100),
        ("7Ei", 7 * 2**60 * 1000, 7 * 2**60),
    ],
)
def test_known_quantities(text: str, milli: int, amount: int) -> None:
    """Every notation gives thousandths and whole units, rounded up."""
    assert (quantity.milli(text), quantity.amount(text)) == (milli, amount)


@pytest.mark.parametrize(("number", "milli", "amount"), [(2, 2000, 2), (0.5, 500, 1), (1e22, None, _LARGEST)])
def test_numbers(number: float, milli: int | None, amount: int) -> None:
    """YAML may give a number in place of a text."""
    assert quantity.amount(number) == amount
    assert milli is None or quantity.milli(number) == milli


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ".", "m", "e3", "1e", "1 Gi", "1ki", "1K", "1GB", "1mi", "1e3Ki", "1e3m", "1e1.5", "--1"),
        *("0x10", "1,5", "1_000", "nan", "inf", "1\n1", "١", "1٢m", "²"),
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    """An invalid quantity is a ValueError of one line that quotes it."""
    message = re.escape(f"{text.strip()!r} is not a quantity")
    for read in (quantity.milli, quantity.amount):
        with pytest.raises(ValueError, match=message):
            read(text)


@pytest.mark.parametrize("value", [True, None, float("nan"), float("inf")])
def test_other_values_are_refused(value: float) -> None:
    """Such as booleans."""
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity.amount(value)


@pytest.mark.parametrize(
    "text", ["9223372036854775808", "8Ei", "1e19", "1e400", "1e2147483647", "1" + "0" * 5000, "9" * 50 + "Ei"]
)
def test_huge_quantities_are_capped(text: str) -> None:
    """At 2^63 - 1, as in the server, for any number of digits."""
    assert quantity.amount(text) == _LARGEST
    assert quantity.milli(text) == _LARGEST * 1000
    assert quantity.amount(f"-{text}") == -_LARGEST


@pytest.mark.parametrize(
    "text", ["1e-400", "1e-2147483647", "0." + "0" * 200 + "1", "1" + "." + "0" * 200 + "1"]
)
def test_tiny_parts_are_rounded_up(text: str) -> None:
    """A tiny request is not zero."""
    assert quantity.amount(text) == int(text.startswith("1.")) + 1
    assert quantity.milli(text) == 1000 * int(text.startswith("1.")) + 1


NUMBERS = st.from_regex(r"[+-]?([0-9]{1,25}(\.[0-9]{0,25})?|\.[0-9]{1,25})", fullmatch=True)


@given(NUMBERS, st.sampled_from(sorted(_FACTORS)) | st.integers(-30, 30).map(lambda power: f"e{power}"))
def test_agrees_with_exact_arithmetic(number: str, suffix: str) -> None:
    """The result is the exact number, rounded up and capped."""
    factor = Fraction(10) ** int(suffix[1:]) if suffix.startswith("e") else _FACTORS[suffix]
    exact = max(Fraction(-_LARGEST), min(Fraction(_LARGEST), Fraction(number) * factor))
    assert quantity.amount(number + suffix) == math.ceil(exact)
    assert quantity.milli(number + suffix) == math.ceil(exact * 1000)


@given(st.text(alphabet="0123456789.eE+-numkKMGTPEi ", max_size=8))
def test_any_text_is_read_or_refused(text: str) -> None:
    """The outcome is an integer or a ValueError."""
    try:
        outcome: object = quantity.milli(text)
    except ValueError as error:
        outcome = str(error)
    assert isinstance(outcome, int) or "is not a quantity" in str(outcome)


@pytest.mark.parametrize(
    ("resource", "count", "text"),
    [
        ("cpu", 0, "0"),
        ("cpu", 1500, "1500m"),
        ("cpu", 3000, "3"),
        ("memory", 0, "0"),
        ("memory", 1024, "1Ki"),
        ("memory", 1000, "1000"),
        ("memory", 1536 * 2**20, "1536Mi"),
        ("memory", 2**60, "1Ei"),
        ("ephemeral-storage", 2**30, "1Gi"),
        ("hugepages-2Mi", 2**22, "4Mi"),
        ("pods", 1024, "1024"),
        ("nvidia.com/gpu", 2048, "2048"),
    ],
)
def test_rendered_as_kubectl_shows_it(resource: str, count: int, text: str) -> None:
    """CPU in cores or thousandths, bytes with the largest suffix that fits, all else as counts."""
    assert quantity.render(resource, count) == text


@given(
    st.sampled_from(["cpu", "memory", "ephemeral-storage", "hugepages-1Gi", "pods", "example.com/card"]),
    st.integers(-(2**62), 2**62),
)
def test_render_and_of_agree(resource: str, count: int) -> None:
    """A rendered quantity is parsed to the same count."""
    assert quantity.of(resource, quantity.render(resource, count)) == count


@pytest.mark.parametrize(
    ("resource", "text", "shown"),
    [
        ("cpu", "0", "0"),
        ("cpu", "1m", "0.001"),
        ("cpu", "250m", "0.25"),
        ("cpu", "6500m", "6.5"),
        ("cpu", "16", "16"),
        ("cpu", "1070250m", "1,070"),
        ("memory", "0", "0 B"),
        ("memory", "1023", "1,023 B"),
        ("memory", "1536", "1.5 KiB"),
        ("memory", "1048575", "1 MiB"),
        ("memory", "131072000Ki", "125 GiB"),
        ("memory", "1023Gi", "1,023 GiB"),
        ("memory", "128M", "122 MiB"),
        ("memory", "1e9", "954 MiB"),
        ("ephemeral-storage", "47093746742", "43.9 GiB"),
        ("hugepages-2Mi", "1Gi", "1 GiB"),
        ("pods", "5k", "5,000"),
        ("pods", "10000", "10,000"),
        ("pods", "2097152", "2,097,152"),
        ("nvidia.com/gpu", "1Ki", "1,024"),
    ],
)
def test_quantities_for_people_have_the_unit_of_their_resource(resource: str, text: str, shown: str) -> None:
    """Only bytes have a binary unit, in whatever notation the API server has the quantity."""
    assert quantity.readable(resource, quantity.of(resource, text)) == shown
