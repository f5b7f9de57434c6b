"""Declares flags and environment variables in the annotations of a structure's fields.

One declaration of a field gives the flag, its help text (the field's docstring), its default (the field's), the
validation (the field's type), and the environment variable. A flag overrides the environment, which overrides the
value that the structure has, for example from a file.
"""

from __future__ import annotations

import argparse
import ast
import functools
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from controller_runtime.apimachinery.decoding import fields
from controller_runtime.errors import ConfigError
from controller_runtime.process.flags import add_boolean, comma_list, duration, format_duration

UPPER = "upper cluster"
PROCESS = "process"
"""Titles of groups of flags that every program has."""

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]

FILE_ONLY = "file only"
"""In the annotation of a field with a structure: the program has no flags for the structure's fields."""

_BOUND = re.compile(r"Expected `\w+` (>=|<=|>|<) (\S+)")
_BOUNDS = {">": "more than", ">=": "at least", "<": "less than", "<=": "at most"}


class Setting:
    """How the command line and the environment set a field.

    Attributes:
        group: title of the flag's group.
        flag: the flag. Empty: only the environment sets the field.
        metavar: the placeholder of the flag's value in help texts.
        environment: names of variables; the first variable that is not empty is used.
        parse: the argparse type; None: derived from the field's type. If it returns None, the flag counts as
            not given.
    """

    def __init__(
        self, group: str, usage: str, *environment: str, parse: Callable[[str], Any] | None = None
    ) -> None:
        """Declare a flag by its usage, such as ``--client-qps N``; empty: no flag."""
        self.group, self.environment, self.parse = group, environment, parse
        self.flag, _, self.metavar = usage.partition(" ")

    @property
    def dest(self) -> str:
        """Return the name of the flag's attribute in argparse's namespace."""
        return self.flag.removeprefix("--").replace("-", "_")


def settings(kind: type[msgspec.Struct]) -> Iterator[tuple[msgspec.structs.FieldInfo, Setting]]:
    """Yield the fields of a structure that have a setting; fields of nested structures are not included."""
    for field in fields(kind):
        if get_origin(field.type) is Annotated:
            yield from ((field, each) for each in get_args(field.type) if isinstance(each, Setting))


def add_flags(parser: argparse.ArgumentParser, defaults: msgspec.Struct, titles: Sequence[str] = ()) -> None:
    """Add the flags of a structure and of the structures in it to a parser, in titled groups.

    Args:
        parser: gets the flags.
        defaults: an instance of the structure, whose values are the defaults in the help.
        titles: the groups in their order; other groups follow as they occur, the group of the process is the last.
    """
    declared = [row for row in _walk(defaults) if row[-1].flag]
    ordered = dict.fromkeys([*titles, *(setting.group for _, _, setting in declared)])
    groups = {title: parser.add_argument_group(title) for title in sorted(ordered, key=PROCESS.__eq__)}
    for owner, field, setting in declared:
        _add_flag(groups[setting.group], owner, field, setting)


def apply(target: msgspec.Struct, flags: argparse.Namespace, environment: Mapping[str, str]) -> None:
    """Set each field for which a flag or environment variable is given, also in the structures in ``target``.

    Args:
        target: the structure; changed in place.
        flags: the parsed flags; a flag that is not given is None (``Parser.parse_given``).
        environment: the environment.

    Raises:
        ConfigError: a value is invalid; the text names the flag or variable.
    """
    for owner, field, setting in _walk(target):
        given = [(name, text) for name in setting.environment if (text := environment.get(name))]
        if setting.flag and (value := getattr(flags, setting.dest)) is not None:
            given.insert(0, (setting.flag, value))
        if given:
            setattr(owner, field.name, _converted(field, *given[0]))


def positive_float(text: str) -> float | None:
    """Return a number; None (the default applies) if it is not more than 0, as in tensile-kube."""
    return value if (value := float(text)) > 0 else None


def positive_int(text: str) -> int | None:
    """Return a whole number; None (the default applies) if it is not more than 0, as in tensile-kube."""
    return value if (value := int(text)) > 0 else None


def _walk(owner: msgspec.Struct) -> Iterator[tuple[msgspec.Struct, msgspec.structs.FieldInfo, Setting]]:
    """Yield the fields with a setting of a structure and of the structures in it, with the structure that has them."""
    for field, setting in settings(type(owner)):
        yield owner, field, setting
    for field in fields(type(owner)):
        value = getattr(owner, field.name)
        if isinstance(value, msgspec.Struct) and FILE_ONLY not in get_args(field.type):
            yield from _walk(value)


def _add_flag(
    group: argparse._ActionsContainer,
    owner: msgspec.Struct,
    field: msgspec.structs.FieldInfo,
    setting: Setting,
) -> None:
    of_type, default = get_args(field.type)[0], getattr(owner, field.name)
    choices = None
    if get_origin(of_type) is Literal:
        choices, default = [each.lower() for each in get_args(of_type)], default.lower()
    if isinstance(default, list | tuple):
        default = ",".join(default)
    text = _help(attribute_docstrings(type(owner)).get(field.name, ""), default, setting)
    if of_type is bool:
        add_boolean(group, setting.flag, default=default, help_text=text)
        return
    group.add_argument(
        setting.flag,
        default=default,
        choices=choices,
        metavar=setting.metavar or None,
        type=setting.parse or (of_type if of_type in {int, float} else str),
        help=text.replace("%", "%%"),
    )


def _help(about: str, default: Any, setting: Setting) -> str:
    """Return the help text: the field's docstring, and the variables and the value that apply without the flag."""
    shown = [f"${name}" for name in setting.environment]
    if isinstance(default, bool):
        shown.append(str(default).lower())
    elif setting.parse is duration:
        shown.append(format_duration(default))
    elif default not in {None, ""}:
        shown.append(f"{default:g}" if isinstance(default, float) else str(default))
    text = " ".join(about.replace("``", "").split()).removesuffix(".")
    return f"{text}. Default: {', '.join(shown)}".removeprefix(". ") if shown else text


def _converted(field: msgspec.structs.FieldInfo, where: str, value: Any) -> Any:
    """Return the value of a flag or variable as the field's type."""
    of_type, converted = get_args(field.type)[0], value
    if get_origin(of_type) in {list, tuple}:
        converted, (item, *_) = comma_list(value), get_args(of_type)
        unknown = set(converted) - set(get_args(item)) if get_origin(item) is Literal else ()
        if unknown:
            raise ConfigError(f"{where}: {min(unknown)!r}: write one of {', '.join(get_args(item))}")
    elif get_origin(of_type) is Literal:
        converted = next((each for each in get_args(of_type) if each.lower() == value), value)
    try:
        return msgspec.convert(converted, field.type, strict=False)
    except msgspec.ValidationError as error:
        if bound := _BOUND.match(str(error)):
            limit = f"must be {_BOUNDS[bound[1]]} {float(bound[2]):g}"
            shown = f"{value:g}" if isinstance(value, float) else value
            raise ConfigError(f"{where}: {shown} {limit}") from None
        raise ConfigError(f"{where}: {value!r}: {error}") from None


def attribute_docstrings(subject: type[Any] | ModuleType) -> Mapping[str, str]:
    """Return the docstrings below the assignments of a class or a module, by the name assigned to.

    Docstrings of base classes are included. Without source text, as for built-in classes, there are none.
    """
    if isinstance(subject, ModuleType):
        return _docstrings(subject).get("", {})
    told: dict[str, str] = {}
    for kind in reversed(subject.__mro__):
        told |= _docstrings(sys.modules[kind.__module__]).get(kind.__qualname__, {})
    return told


@functools.cache
def _docstrings(module: ModuleType) -> Mapping[str, Mapping[str, str]]:
    """Return the docstrings of the attributes of a module and its classes, by qualified name; empty for the module.

    A module is parsed once, because its structures together declare the flags of a program, which needs them at start.
    """
    try:
        body = ast.parse(inspect.getsource(module)).body
    except (OSError, TypeError):
        return {}
    return {name: dict(_attributes(statements)) for name, statements in _bodies(body)}


def _bodies(body: Sequence[ast.stmt], name: str = "") -> Iterator[tuple[str, Sequence[ast.stmt]]]:
    """Yield a body and those of the classes in it, by qualified name."""
    yield name, body
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _bodies(statement.body, f"{name}.{statement.name}".removeprefix("."))


def _attributes(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring of each assignment in a body."""
    for statement, following in itertools.pairwise(body):
        if not isinstance(following, ast.Expr) or not isinstance(following.value, ast.Constant):
            continue
        targets = (
            statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        )
        text = following.value.value
        if isinstance(text, str) and isinstance(statement, ast.Assign | ast.AnnAssign):
            yield from ((target.id, text) for target in targets if isinstance(target, ast.Name))
