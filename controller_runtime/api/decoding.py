"""JSON and YAML from outside, decoded with one error for everything that can be wrong with them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import yaml

T = TypeVar("T")
Json = bytes | str | msgspec.Raw

_DEEPEST = 100
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def decoder(kind: type[T]) -> Callable[[Json], T]:
    """Return a function that decodes JSON texts to values of a type.

    msgspec reports some defects by other errors than its own: nesting that is too deep by RecursionError, bytes that
    are not UTF-8 by UnicodeDecodeError, text with lone surrogates by UnicodeEncodeError. The function raises
    msgspec.DecodeError for all of them.
    """
    decode = msgspec.json.Decoder(kind).decode

    @functools.wraps(decode)
    def decode_safely(text: Json) -> T:
        try:
            return decode(text)
        except RecursionError:
            raise msgspec.DecodeError("JSON is nested too deeply") from None
        except UnicodeError as error:
            raise msgspec.DecodeError(f"JSON is not UTF-8: {error}") from None

    return decode_safely


decode: Callable[[Json], Any] = decoder(Any)
"""Return the value of a JSON text; raises msgspec.DecodeError. Objects call it for every spec and status they read."""


def decode_yaml(text: str) -> Any:
    """Return the value of a YAML text.

    Raises:
        ValueError: Not YAML, or nested too deeply; one line.
    """
    try:
        _check_depth(text)
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - the safe loader, in C where it is built
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(" ".join(str(error).split())) from None


def _check_depth(text: str) -> None:
    """Refuse nesting that the loader, which recurses in C, would end the process on."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEEPEST:
                raise ValueError(f"nested more than {_DEEPEST} levels deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
