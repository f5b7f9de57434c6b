"""Kubernetes quantities (``100m``, ``1.5Gi``, ``1e3``) as integers.

Source: apimachinery ``pkg/api/resource/quantity.go``: decimal numbers with an optional decimal exponent,
decimal SI or binary SI suffix. Values that a scale cannot represent are rounded up, and limited to 2^63 - 1
units.
"""

from __future__ import annotations

import functools
import re
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, Context, Decimal

_FRACTIONS = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1)}
_DECIMAL = {suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", start=1)}
_BINARY = {f"{prefix}i": 1024**power for power, prefix in enumerate("KMGTPE", start=1)}
_FACTORS = _FRACTIONS | _DECIMAL | {suffix: Decimal(factor) for suffix, factor in _BINARY.items()}
_PATTERN = re.compile(
    r"([+-]?(?:\d++(?:\.\d*+)?|\.\d++))(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII
)
_LARGEST = Decimal(2**63 - 1)
_DIGITS = 18
"""Every number of at most this many decimal digits is below ``_LARGEST``."""
_CONTEXT = Context(prec=60, rounding=ROUND_CEILING, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
"""Its 60 digits represent every integer in range exactly, so the rounding to 60 digits changes no result."""
BINARY_RESOURCES = ("memory", "ephemeral-storage", "storage")


def milli(value: str | float) -> int:
    """Return the quantity in thousandths, rounded up; the unit of cpu.

    Raises:
        ValueError: not a quantity.
    """
    return _scaled(value, 1000)


def amount(value: str | float) -> int:
    """Return the quantity in units, rounded up; for memory, pods and extended resources.

    Raises:
        ValueError: not a quantity.
    """
    return _scaled(value, 1)


def of(resource: str, value: str | float) -> int:
    """Return a quantity in the unit of its resource: thousandths for cpu, units otherwise."""
    if isinstance(value, str) and len(value) <= _DIGITS:
        return _known(value, is_cpu=resource == "cpu")
    return milli(value) if resource == "cpu" else amount(value)


@functools.lru_cache(maxsize=4096)
def _known(value: str, *, is_cpu: bool) -> int:
    """Return a quantity in thousandths or units. Cached, because thousands of pods request the same few quantities."""
    return milli(value) if is_cpu else amount(value)


def render(resource: str, count: int) -> str:
    """Return the canonical text of a count from ``of``."""
    if resource == "cpu":
        return str(count // 1000) if count % 1000 == 0 else f"{count}m"
    if _is_bytes(resource):
        for suffix, factor in reversed(_BINARY.items()):
            if count and count % factor == 0:
                return f"{count // factor}{suffix}"
    return str(count)


def readable(resource: str, count: int) -> str:
    """Return a count from ``of`` for people: bytes as ``125 GiB``, cpu as cores with decimals, others as ``10,000``."""
    if resource == "cpu":
        # 6500 thousandths are 6.5, 1070250 are 1,070; less than a core has two digits.
        digits = 2 if count < 1000 else max(3, len(str(count // 1000)))
        return _rounded(Decimal(count) / 1000, digits)
    if not _is_bytes(resource):
        return f"{count:,}"
    unit, size = "B", 1
    for suffix, factor in _BINARY.items():
        # Else 1023.96 MiB would be shown as 1,024 MiB.
        if count * 1024 >= factor * 1023.95:
            unit, size = f"{suffix}B", factor
    return f"{_rounded(Decimal(count) / size, max(3, len(str(count // size))))} {unit}"


def _rounded(value: Decimal, digits: int) -> str:
    """Return a number with at most this many digits, without trailing zeros."""
    text = f"{Context(prec=digits).plus(value):,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _is_bytes(resource: str) -> bool:
    return resource in BINARY_RESOURCES or resource.startswith("hugepages-")


def _scaled(value: str | float, factor: int) -> int:
    if isinstance(value, str) and len(value) <= _DIGITS and value.isdecimal() and value.isascii():
        return int(value) * factor
    return int(_CONTEXT.multiply(_decimal(value), factor).to_integral_value(ROUND_CEILING))


def _decimal(value: str | float) -> Decimal:
    text = str(value).strip()
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:80]!r} is not a quantity such as 500m, 2 or 1Gi")
    number, exponent, suffix = match.groups()
    exact = _CONTEXT.create_decimal(number + (exponent or ""))
    # Limited before it becomes an integer, because ``1e999999999`` would be an integer of a billion digits.
    return max(-_LARGEST, min(_LARGEST, _CONTEXT.multiply(exact, _FACTORS[suffix or ""])))
