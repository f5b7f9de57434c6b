"""docs/operate/migrate-from-tensile-kube.md agrees with the parsers."""

from __future__ import annotations

import re

import pytest

from hack.docs import flags, reference
from hack.docs.flags import variables

TEXT = (reference.DIRECTORY.parent / "operate/migrate-from-tensile-kube.md").read_text(encoding="utf-8")
_FLAG = re.compile(r"^\| `(--[\w-]+)` \| (kept|accepted|gone) \|", re.MULTILINE)
_VARIABLE = re.compile(r"^\| `([A-Z_]+)` \| (kept|gone) \|", re.MULTILINE)
PROGRAMS = [
    "virtual-node",
    "virtual-node-webhook",
    "virtual-node-descheduler",
    "virtual-node-multi-scheduler",
]


def _flags(program: str) -> list[tuple[str, str]]:
    section = TEXT.split(f"\n### {program}\n")[1].split("\n### ")[0].split("\n## ")[0]
    return _FLAG.findall(section)


@pytest.mark.parametrize("program", PROGRAMS)
def test_kept_flags_exist(program):
    """A flag listed as kept or accepted is in the parser, and a removed one is not."""
    there, listed = flags.flag_names(program), _flags(program)
    assert listed
    assert [name for name, fate in listed if (name in there) != (fate != "gone")] == []


def test_flags_without_effect_are_listed_as_accepted():
    """The page agrees with the parser's own help."""
    parser = flags.parser_of("virtual-node")
    idle = {
        name
        for action in parser._actions
        for name in action.option_strings
        if (action.help or "").startswith("Accepted for compatibility")
    }
    assert idle == {name for name, fate in _flags("virtual-node") if fate == "accepted"}


def test_no_flag_of_tensile_kubes_virtual_node_is_an_error():
    """Any existing manifest starts."""
    assert [name for name, fate in _flags("virtual-node") if fate == "gone"] == []


def test_kept_variables_are_read():
    """And are in the reference."""
    kept = {name for name, fate in _VARIABLE.findall(TEXT) if fate == "kept"}
    assert kept
    assert kept <= variables().keys()
