"""docs/migrate-from-tensile-kube.md promises nothing that the parsers do not keep."""

from __future__ import annotations

import re

import pytest

from hack.docs import flags, reference
from hack.docs.environment import variables

TEXT = (reference.DIRECTORY.parent / "migrate-from-tensile-kube.md").read_text(encoding="utf-8")
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
def test_flags_are_kept_as_promised(program):
    """A flag listed as kept or accepted is in the parser, and one that is gone is not."""
    there, listed = flags.flag_names(program), _flags(program)
    assert listed
    assert [name for name, fate in listed if (name in there) != (fate != "gone")] == []


def test_flags_without_effect_are_called_accepted():
    """The page and the parser's own help agree on which flags do nothing."""
    parser = flags.parser_of("virtual-node")
    idle = {
        name
        for action in parser._actions
        for name in action.option_strings
        if (action.help or "").startswith("accepted for compatibility")
    }
    assert idle == {name for name, fate in _flags("virtual-node") if fate == "accepted"}


def test_no_flag_of_tensile_kubes_virtual_node_is_an_error():
    """A manifest in use starts here, whatever it says; the page promises nothing less."""
    assert [name for name, fate in _flags("virtual-node") if fate == "gone"] == []


def test_variables_are_kept_as_promised():
    """Each environment variable listed as kept is read, and is in the reference."""
    kept = {name for name, fate in _VARIABLE.findall(TEXT) if fate == "kept"}
    assert kept
    assert kept <= variables().keys()
