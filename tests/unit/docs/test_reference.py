"""docs/reference says what the code says: generated pages are fresh, and names are all there."""

from __future__ import annotations

import re

import pytest

import multi_scheduler.config
import virtual_node.config.types
from controller_runtime.api import names
from hack.docs import configuration, flags, reference, rights
from hack.docs.markdown import COMMAND
from virtual_node.translate.pods import downward_api
from virtual_node.translate.storage import binder_pod, pv, pvc

NAMES_PAGE = reference.DIRECTORY / "annotations-and-labels.md"
_ROW = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)


_NOT_NAMES = {"DOMAIN", "NODE_TYPE_VIRTUAL"}


def _constants() -> set[str]:
    shared = {
        value
        for name, value in vars(names).items()
        if name.isupper() and isinstance(value, str) and name not in _NOT_NAMES
    }
    return shared | {
        pvc.FINALIZER,
        downward_api.ANNOTATION_UID,
        downward_api.ANNOTATION_LABELS,
        downward_api.ANNOTATION_ANNOTATIONS,
        pv.ANNOTATION_SOURCE_OF_VOLUME,
        pv.DRIVER,
        binder_pod.ANNOTATION_CLAIMS,
        binder_pod.LABEL_BINDER_OF,
    }


@pytest.mark.parametrize("page", reference.PAGES)
def test_a_generated_page_is_what_the_code_says(page):
    """A page that lags behind the code fails here, with the command that makes it anew."""
    text = reference.PAGES[page]()
    assert reference.stale({page: text}) == [], f"docs/reference/{page} is stale: run {COMMAND}"


@pytest.mark.parametrize("program", flags.PROGRAMS)
def test_every_flag_is_in_the_page(program):
    """Each flag that a parser knows is in the section of its program."""
    section = flags.render().split(f"\n## {program}\n")[1].split("\n## ")[0]
    elsewhere = {"-h", "--help"}
    if program in {"virtual-node check", "virtual-node inspect"}:
        elsewhere |= flags.flag_names(flags.DAEMON)  # they take the daemon's flags, too
    missing = [name for name in flags.flag_names(program) - elsewhere if f"`{name}`" not in section]
    assert missing == []


@pytest.mark.parametrize("root", [virtual_node.config.types.Config, multi_scheduler.config.Config])
def test_every_field_has_a_meaning(root):
    """No field of a configuration file stands there without a word about it."""
    assert [path for path, meaning in configuration.paths(root) if not meaning] == []


def test_nested_fields_are_told_by_their_whole_path():
    """A reader finds what stands in a list of objects under the path that leads to it."""
    assert "`clusters[].nodes[].capacity.reserve`" in configuration.render()


def test_every_right_is_in_the_page():
    """Each right of the table that check asks for is a line of the page."""
    text = rights.render()
    found = [
        right for module in rights.modules() for table in rights.tables(module).values() for right in table
    ]
    assert len(found) > 30
    assert [right for right in found if f"`{right.full_resource}`" not in text] == []


def test_check_writes_nothing_and_says_what_to_run(tmp_path, monkeypatch, capsys):
    """With --check a stale page is named, the exit code is 1, and no file is written."""
    monkeypatch.setattr(reference, "DIRECTORY", tmp_path)
    monkeypatch.setattr(reference, "PAGES", {"rights.md": lambda: "new\n"})
    assert reference.main(["--check"]) == 1
    assert COMMAND in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0"), (20, "20s"), (300, "5m"), (5400, "1h30m"), (0.5, "0.5s")]
)
def test_durations_read_as_go_writes_them(seconds, text):
    """A default is shown in the spelling that the flag takes."""
    assert flags.go_duration(seconds) == text


def test_every_public_name_is_in_the_page_and_nothing_else():
    """Who looks a label up finds it, and finds none that the code does not know."""
    rows = _ROW.findall(NAMES_PAGE.read_text(encoding="utf-8"))
    assert set(rows) == _constants()
    assert len(rows) == len(set(rows))
