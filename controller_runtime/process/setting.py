"""Declares flags and environment variables of configuration fields, in the annotations of the fields.

A flag overrides the environment, which overrides the file of ``--config``, which overrides the default. The
field's docstring is the help text, and its type validates the value.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from controller_runtime.errors import ConfigError
from controller_runtime.process.flags import add_boolean, comma_list, duration
from controller_runtime.util.docstrings import attribute_docstrings

UPPER = "upper cluster"
LOWER = "lower cluster (one; use --config for many)"
NODE = "node"
PODS = "pods"
KUBELET = "kubelet API"
PROCESS = "process"
GROUPS = (UPPER, LOWER, NODE, PODS, KUBELET, PROCESS)
"""Titles of the groups of flags in help texts."""

Positive = Annotated[float, Meta(gt=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]


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
        return dest(self.flag)


def dest(flag: str) -> str:
    """Return the name of a flag's attribute in argparse's namespace."""
    return flag.removeprefix("--").replace("-", "_")


def settings(kind: type[msgspec.Struct]) -> Iterator[tuple[msgspec.structs.FieldInfo, Setting]]:
    """Yield the fields of a structure that have a setting; fields of nested structures are not included."""
    for field in msgspec.structs.fields(kind):
        if get_origin(field.type) is Annotated:
            yield from ((field, found) for found in get_args(field.type) if isinstance(found, Setting))


def add_flags(groups: Mapping[str, argparse._ActionsContainer], kind: type[msgspec.Struct]) -> None:
    """Add the flags of a structure's fields to the argument groups, which are given by title."""
    about = attribute_docstrings(kind)
    for field, setting in settings(kind):
        if not setting.flag:
            continue
        of_type = get_args(field.type)[0]
        value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        if isinstance(value, list):
            value = ",".join(value)
        choices = tuple(one.lower() for one in get_args(of_type)) if get_origin(of_type) is Literal else None
        default = value.lower() if choices else value
        shown = (
            f"{value:g}s"
            if setting.parse is duration
            else str(default).lower()
            if isinstance(value, bool)
            else default
        )
        text = " ".join(about.get(field.name, "").replace("``", "").split()).removesuffix(".")
        text = f"{text}. Default: {shown}" if shown != "" else text
        if of_type is bool:
            add_boolean(groups[setting.group], setting.flag, default=value, help_text=text)
            continue
        groups[setting.group].add_argument(
            setting.flag,
            default=default,
            choices=choices,
            metavar=setting.metavar or None,
            type=setting.parse or (of_type if of_type in {int, float} else str),
            help=text.replace("%", "%%"),
        )


def apply(target: msgspec.Struct, flags: argparse.Namespace, environment: Mapping[str, str]) -> None:
    """Set each field of a structure for which a flag or environment variable is given.

    Args:
        target: the structure; changed in place.
        flags: the parsed flags; a flag that is not given is None.
        environment: the environment.

    Raises:
        ConfigError: a value is invalid; the text names the flag or variable.
    """
    for field, setting in settings(type(target)):
        given = [(name, text) for name in setting.environment if (text := environment.get(name))]
        if setting.flag and (value := getattr(flags, setting.dest)) is not None:
            given.insert(0, (setting.flag, value))
        if not given:
            continue
        (where, value), of_type = given[0], get_args(field.type)[0]
        converted: Any = value
        if get_origin(of_type) is list:
            converted = comma_list(value)
        elif get_origin(of_type) is Literal:
            converted = next((one for one in get_args(of_type) if one.lower() == value), value)
        try:
            setattr(target, field.name, msgspec.convert(converted, field.type, strict=False))
        except msgspec.ValidationError as error:
            raise ConfigError(f"{where}: {value!r}: {error}") from None


def positive_float(text: str) -> float | None:
    """Return a number; None (the default applies) if it is not more than 0, as in tensile-kube."""
    return value if (value := float(text)) > 0 else None


def positive_int(text: str) -> int | None:
    """Return a whole number; None (the default applies) if it is not more than 0, as in tensile-kube."""
    return value if (value := int(text)) > 0 else None
