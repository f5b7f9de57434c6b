"""No regular expression of the product backtracks over long text, because tenants and API servers control its input."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import pytest

from hack.size import PRODUCT
from tests.thorough import some
from tests.unit.growth import assert_linear

_UNITS = (
    *(
        "a",
        "A",
        "1",
        "é",
        "_",
        "-",
        ".",
        ",",
        ":",
        "/",
        "\\",
        '"',
        "(",
        "{",
        "[",
        "=",
        " ",
        "\t",
        "\n",
        "\r\n",
        "+",
    ),
    *("a-", "a.", "-a.", "a1", "a ", " a", "a,", "a,(", "()", "a(", "(a", "1.", ".1", "1e", "1s", "1d", "0:"),
    *(
        'a="',
        'a=""',
        '\\"',
        'a="\\',
        '="',
        "a{",
        "a{}",
        "a 1 ",
        "=a",
        "!=",
        "a=",
        "a in (",
        "http://a/",
        "%a",
    ),
    *(
        "eyJaaaaaaaa-",
        "bearer ",
        "-----BEGIN ",
        "PRIVATE KEY-----",
        "upgrade\t",
        "upgrade:",
        "node_a{",
        "Init:1",
    ),
)
_HEADS = (
    "",
    "a",
    "1",
    "a=",
    "a ",
    "a{",
    'a="',
    "node_",
    "HTTP/1.1 200 ",
    "GET /exec/",
    "GET /exec/\r\n",
    "(",
    ":",
)


def used() -> Iterator[tuple[str, Callable[[str], object]]]:
    """Return every compiled pattern that is a global of a product module, or in a table there, with the methods that are used."""
    for package in PRODUCT:
        root = importlib.import_module(package)
        for info in pkgutil.walk_packages(root.__path__, f"{package}."):
            if info.name.endswith("__main__"):
                continue
            module = importlib.import_module(info.name)
            source = inspect.getsource(module)
            for name, pattern in vars(module).items():
                if isinstance(pattern, re.Pattern):
                    for method in sorted(set(re.findall(rf"\b{name}\.(\w+)\(", source))):
                        yield f"{info.name}.{name}.{method}", _call(pattern, method)
                elif isinstance(pattern, tuple | dict):
                    for number, one in enumerate(_patterns(pattern)):
                        yield f"{info.name}.{name}[{number}]", partial(_find_all, one)


def _patterns(row: Iterable[object]) -> Iterator[re.Pattern[Any]]:
    """Return the patterns in a table of rows, or those that are the keys of a dict."""
    for one in row:
        if isinstance(one, re.Pattern):
            yield one
        elif isinstance(one, tuple):
            yield from _patterns(one)


def _find_all(pattern: re.Pattern[Any], text: str) -> object:
    return list(pattern.finditer(text))


def _call(pattern: re.Pattern[Any], method: str) -> Callable[[str], object]:
    function: Callable[[Any], object] = getattr(pattern, method)
    if method == "sub":
        function = partial(function, pattern.pattern[:0])
    return function if isinstance(pattern.pattern, str) else lambda text: function(text.encode())


@pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in used()])
def test_time_grows_linearly(call):
    """Twice the text takes about twice the time."""

    def text(head: str, unit: str, size: int) -> str:
        return head + unit * (size // len(unit)) + "\x00"

    for head in some(_HEADS, 2):
        for unit in _UNITS:
            for size, suspicious in ((200, 0.005), (4000, 0.001)):  # cubic growth already shows here
                started = time.thread_time()
                call(text(head, unit, size))
                if time.thread_time() - started > suspicious:
                    assert_linear(call, partial(text, head, unit), size=size)
