"""Formats quantities, counts, suggestions and texts of a cluster for people. For exact values use ``quantity``."""

from __future__ import annotations

from collections.abc import Container, Iterable

from controller_runtime.apimachinery import quantity

_KEPT = frozenset("\n\t")
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def one_line(text: str) -> str:
    """Return the text in one line without control characters, so that text of a cluster cannot move the cursor."""
    return printable(" ".join(text.split()))


def lines(text: str) -> str:
    """Return the text without control characters, except for line feeds and tabs."""
    return printable(text, kept=_KEPT)


def printable(text: str, *, instead: str = "?", kept: Container[str] = "") -> str:
    """Return the text with another one instead of each control character that is not in ``kept``."""
    if text.isprintable():
        return text
    # A look at each character would take five times as long.
    replaced = {ord(one): instead for one in set(text) if not one.isprintable() and one not in kept}
    return text.translate(replaced)


def resource(name: str, count: int) -> str:
    """Return a count of ``quantity.of`` rounded to about three digits: ``23.5 GiB``, ``1.5`` CPU, ``110`` pods."""
    if name == "cpu":
        return _short(count / 1000, digits=3 if abs(count) < 1000 else 2)
    if name in quantity.BINARY_RESOURCES or name.startswith("hugepages-"):
        return _bytes(count)
    return str(count)


def text(name: str, value: str | float) -> str:
    """Return a quantity such as ``24632884Ki`` formatted as by ``resource``; other text unchanged."""
    try:
        return resource(name, quantity.of(name, value))
    except ValueError:
        return str(value)


def count(number: int, one: str, several: str = "") -> str:
    """Return a number with its noun, and verb if given: ``1 pod``, ``3 pods``, ``3 pods wait``.

    ``several`` has the words for other numbers than 1; empty: ``one`` with an s.
    """
    return f"{number} {one if number == 1 else several or f'{one}s'}"


def some(names: Iterable[str], *, limit: int = 3) -> str:
    """Return the first few names: ``a, b, c and 4 more``."""
    listed = list(names)
    more = len(listed) - limit
    return ", ".join(listed[:limit]) + (f" and {more} more" if more > 0 else "")


def guess(word: str, known: Iterable[str]) -> str:
    """Return ``, did you mean status?`` to append to a message about an unknown word.

    The comparison ignores case. Empty if no known word is similar.
    """
    import difflib  # noqa: PLC0415 - only errors have suggestions

    by_lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f", did you mean {by_lower[close[0]]}?" if close else ""


def _bytes(number: int) -> str:
    if abs(number) < 1024:
        return f"{number} B" if number else "0"
    amount = float(number)
    for unit in _UNITS:
        amount /= 1024
        # 1023.96 MiB would be rounded to 1024 MiB, so it is shown as 1 GiB.
        if abs(amount) < 1023.95 or unit == _UNITS[-1]:
            break
    return f"{_short(amount, digits=1)} {unit}"


def _short(amount: float, *, digits: int) -> str:
    shown = f"{amount:.{digits}f}"
    return shown.rstrip("0").rstrip(".")
