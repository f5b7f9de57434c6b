"""Decodes external JSON and YAML, with one exception type for all defects; the base of configuration structures."""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

import msgspec

from controller_runtime.apimachinery.readable import guess

if TYPE_CHECKING:
    import yaml

T = TypeVar("T")
Json = bytes | str | msgspec.Raw

_DEEPEST = 100
_COMPLAINT = re.compile(r"(?s)(.*?)(?: - at `\$(.*)`)?")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `([^`]*)`")
_STEP = re.compile(r"\.(\w+)|\[")

_ACRONYMS = frozenset({"api", "ca", "cli", "id", "ip", "qps", "url"})


def field_name(field: str) -> str:
    """Return the name in files of a structure's field, as Kubernetes spells names: ``client_ca_file`` is ``clientCAFile``.

    An acronym has capital letters, except as the first word.
    """
    first, *words = field.split("_")
    return first + "".join(word.upper() if word in _ACRONYMS else word.capitalize() for word in words)


def former_name(field: str) -> str:
    """Return the name that a field had in files of earlier releases: ``client_ca_file`` was ``clientCaFile``."""
    first, *words = field.split("_")
    return first + "".join(map(str.capitalize, words))


class ConfigStruct(
    msgspec.Struct, rename=field_name, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """A structure of a configuration file: unknown fields are errors, and ``convert`` also reads former names of fields."""


class NestedTooDeeplyError(msgspec.DecodeError):
    """JSON that may be valid, but is nested deeper than this process can decode (about 1,000 levels)."""


def decoder(kind: type[T]) -> Callable[[Json], T]:
    """Return a function that decodes JSON texts to values of a type.

    msgspec reports some defects with other errors than its own: too deep nesting as RecursionError, bytes
    that are not UTF-8 as UnicodeDecodeError, text with lone surrogates as UnicodeEncodeError. The function
    raises msgspec.DecodeError for all of them.
    """
    decode = msgspec.json.Decoder(kind).decode

    @functools.wraps(decode)
    def decode_safely(text: Json) -> T:
        try:
            return decode(text)
        except RecursionError:
            raise NestedTooDeeplyError("JSON is nested too deeply") from None
        except UnicodeError as error:
            raise msgspec.DecodeError(f"JSON is not UTF-8: {error}") from None

    return decode_safely


decode: Callable[[Json], Any] = decoder(Any)
"""Return the value of a JSON text; raise msgspec.DecodeError if it is invalid. ``objects`` decodes every spec
and status with it."""


def file_text(content: bytes) -> str:
    """Return the text of a file: UTF-8, or UTF-16 with a byte order mark, as YAML permits.

    Windows PowerShell writes UTF-16 for ``kubectl config view --raw > FILE``.

    Raises:
        UnicodeDecodeError: the content is no such text.
    """
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if is_utf16 else "utf-8")


def convert(document: Any, kind: type[T], *, where: str = "") -> T:
    """Return a decoded document as a value of a struct type; ``where`` is its location in the file, for errors.

    Fields may also have their former names.

    Raises:
        ValueError: names the first invalid field and its path; for an unknown field, suggests a known one.
    """
    try:
        return msgspec.convert(with_current_names(document, kind, where=where), kind)
    except msgspec.ValidationError as error:
        complaint = _COMPLAINT.fullmatch(str(error))
        text, path = (complaint[1], complaint[2] or "") if complaint else (str(error), "")
        unknown = _UNKNOWN_FIELD.fullmatch(text)
        if unknown:
            known = (field.encode_name for field in _fields_at(kind, path))
            text = f"unknown field `{unknown[1]}`{guess(unknown[1], known)}"
        place = f"{where}{path}".removeprefix(".")
        raise ValueError(f"{place}: {text}" if place else text) from None


def with_current_names(document: Any, kind: Any, *, where: str = "") -> Any:
    """Return a decoded document of a type, with the current names of fields instead of their former names.

    Raises:
        ValueError: a structure has both names of a field.
    """
    struct = _struct_of(kind)
    if struct is not None and isinstance(document, dict):
        renamed = dict(document)
        for field in fields(struct):
            current, former = field.encode_name, former_name(field.name)
            if former != current and former in renamed:
                if current in renamed:
                    place = f"{where}." if where else ""
                    raise ValueError(f"{place}{former}: is the same field as {current}; leave {former} out")
                renamed[current] = renamed.pop(former)
            if current in renamed:
                path = f"{where}.{current}".removeprefix(".")
                renamed[current] = with_current_names(renamed[current], field.type, where=path)
        return renamed
    if isinstance(document, list) and (items := _items_of(kind, list)) is not None:
        return [
            with_current_names(item, items, where=f"{where}[{position}]")
            for position, item in enumerate(document)
        ]
    if isinstance(document, dict) and (values := _items_of(kind, dict)) is not None:
        return {
            key: with_current_names(value, values, where=f"{where}.{key}") for key, value in document.items()
        }
    return document


@functools.cache
def fields(struct: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of a structure. Without the cache, its annotations are compiled each time, which takes milliseconds."""
    return msgspec.structs.fields(struct)


def _struct_of(kind: Any) -> type[msgspec.Struct] | None:
    """Return the structure in a type such as ``S``, ``S | None`` or ``Annotated[S, …]``; None: there is none."""
    if get_origin(kind) in {list, dict}:
        return None
    kinds = (member for member in (kind, *get_args(kind)) if isinstance(member, type))
    return next((member for member in kinds if issubclass(member, msgspec.Struct)), None)


def _items_of(kind: Any, container: type) -> Any:
    """Return the type of the items of a list type, or of the values of a dict type; None: the type is neither."""
    found = (one for one in (kind, *get_args(kind)) if get_origin(one) is container)
    return next((get_args(one)[-1] for one in found), None)


def _fields_at(kind: Any, path: str) -> Iterator[msgspec.structs.FieldInfo]:
    """Yield the fields of the struct that a path of msgspec, such as ``.clusters[0]``, leads to."""
    for step in _STEP.finditer(path):
        if step[1]:
            found = [field.type for field in _fields_at(kind, "") if field.encode_name == step[1]]
        else:
            # ``[`` leads to a list's items or a mapping's values: the last type argument of the list or
            # mapping.
            found = [get_args(one)[-1] for one in (kind, *get_args(kind)) if get_args(one)]
        kind = found[0] if found else None
    for one in (kind, *get_args(kind)):
        if isinstance(one, type) and issubclass(one, msgspec.Struct):
            yield from fields(one)


def decode_yaml(text: str) -> Any:
    """Return the value of a YAML text. Empty documents do not count, such as that after a separator at the end.

    Raises:
        ValueError: not YAML, more than one document, or nested too deeply; the message is one line with the position of the error.
    """
    import yaml  # noqa: PLC0415 - programs that read only JSON start without it

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_depth(yaml.parse(text, Loader=loader))
        documents = [document for document in yaml.load_all(text, Loader=loader) if document is not None]
        if len(documents) > 1:
            yaml.load(text, Loader=loader)  # noqa: S506 - raises the error with its position
        return documents[0] if documents else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        context = f" ({error.context})" if error.context else ""
        raise ValueError(f"{place}{error.problem}{context}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ValueError(f"line {line}: {error.reason}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(" ".join(str(error).split())) from None


def _check_depth(events: Iterable[yaml.Event]) -> None:
    """Raise ValueError for nesting that would crash the loader, which recurses in C."""
    import yaml  # noqa: PLC0415 - see decode_yaml

    depth = 0
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEEPEST:
                raise ValueError(f"nested more than {_DEEPEST} levels deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
