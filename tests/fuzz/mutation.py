"""Derives hostile inputs from valid ones: damaged bytes, exchanged JSON values, deep nesting, long repetitions."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

LONGEST = 64 * 1024
"""Bytes of an input; slow parsing already shows at this size."""

_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 2**63, -(2**63) - 1, 2**200, 1.5, 1e308, "", "0", "a", "\x00", "é\ud800", "1e999999999",
    "9" * 400, "../..", "a/b/c", "\r\nX: y", [], {}, [None], [[]], [{}], {"": None}, {"metadata": None}, [1, "a"], "Exists",
)  # fmt: skip
_TOKENS = (
    b"\r\n", b"\r\n\r\n", b"\n", b"\x00", b"\xff\xfe", b"%2e%2e%2f", b"%00", b"%ff", b"..", b"//", b"&", b"=", b"?", b"#",
    b" HTTP/1.1", b"Upgrade: h2c\r\n", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n", b"{", b"}", b"[", b"]",
    b'"', b"\\u0000", b"\\ud800", b"1e400", b"-", b"+", b",", b":", b"(", b")", b"!", b"*a", b"&a", b"<<: ", b"!!python/name:os",
)  # fmt: skip


def hostile(seed: bytes, rng: random.Random) -> bytes:
    """Return the seed changed in one to four places; JSON is changed as JSON half of the time.

    Args:
        seed: A valid input.
        rng: Source of every choice, so that one number reproduces an input.
    """
    text = seed
    if rng.random() < 0.5 and (changed := _other_json(seed, rng)) is not None:
        text = changed
        if rng.random() < 0.7:
            return text[:LONGEST]
    for _ in range(rng.randint(1, 4)):
        text = rng.choice(_DAMAGES)(text, rng)
    return text[:LONGEST]


def _other_json(seed: bytes, rng: random.Random) -> bytes | None:
    try:
        tree = json.loads(seed)
    except (ValueError, RecursionError):
        return None
    for _ in range(rng.randint(1, 4)):
        tree = _exchanged(tree, rng)
    return json.dumps(tree).encode("utf-8", "surrogatepass")


def _exchanged(tree: Any, rng: random.Random) -> Any:
    """Replace, delete, duplicate or move one value somewhere in a JSON tree."""
    holders = list(_holders(tree))
    if not holders or rng.random() < 0.02:
        return copy.deepcopy(rng.choice(_VALUES))
    holder = rng.choice(holders)
    keys: Sequence[Any] = list(holder) if isinstance(holder, dict) else range(len(holder))
    if not keys:
        return tree
    key = rng.choice(keys)
    match rng.randrange(5):
        case 0 if isinstance(holder, dict):
            del holder[key]
        case 1:
            holder[key] = copy.deepcopy(rng.choice(holders))
        case 2 if isinstance(holder, list):
            holder.extend([copy.deepcopy(holder[key])] * rng.choice((1, 2, 200)))
        case 3 if isinstance(holder[key], str):
            holder[key] = hostile(holder[key].encode("utf-8", "surrogatepass"), rng)[:2000].decode("latin-1")
        case _:
            holder[key] = copy.deepcopy(rng.choice(_VALUES))
    return tree


def _holders(tree: Any) -> list[Any]:
    found: list[Any] = []
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            found.append(one)
            waiting.extend(one.values())
        elif isinstance(one, list):
            found.append(one)
            waiting.extend(one)
    return found


def _cut(text: bytes, rng: random.Random) -> bytes:
    return text[: rng.randint(0, len(text))]


def _flip(text: bytes, rng: random.Random) -> bytes:
    if not text:
        return text
    at = rng.randrange(len(text))
    return text[:at] + bytes([rng.randrange(256)]) + text[at + 1 :]


def _insert(text: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(text))
    return text[:at] + rng.choice(_TOKENS) * rng.choice((1, 1, 1, 2, 50)) + text[at:]


def _repeat(text: bytes, rng: random.Random) -> bytes:
    start = rng.randint(0, len(text))
    piece = text[start : start + rng.randint(1, 40)]
    times = rng.choice((2, 10, 1000, LONGEST // max(1, len(piece))))
    return text[:start] + piece * times + text[start:]


def _nest(text: bytes, rng: random.Random) -> bytes:
    depth = rng.choice((10, 1000, 20_000))
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"(", b")")))
    return opening * depth + text + closing * depth


def _delete(text: bytes, rng: random.Random) -> bytes:
    start = rng.randint(0, len(text))
    return text[:start] + text[start + rng.randint(1, 20) :]


_DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _cut, _flip, _flip, _insert, _insert, _repeat, _nest, _delete,
)  # fmt: skip
