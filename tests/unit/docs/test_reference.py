"""Generated pages of docs/reference are up to date, and names are complete."""

from __future__ import annotations

import importlib
import re
from functools import cache

import pytest

import multi_scheduler.config
import virtual_node.config.types
from clusterset.model import names
from hack.docs import configuration, flags, reference, rights
from hack.docs.markdown import COMMAND
from hack.programs import DAEMON, programs
from virtual_node.rights import name_server
from virtual_node.translate.pods import downward_api
from virtual_node.translate.storage import binder_pod, pv, pvc, shared

NAMES_PAGE = reference.DIRECTORY / "annotations-and-labels.md"
_ROW = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)


_NOT_NAMES = {"DEFAULT_SCHEDULER", "DOMAIN", "EVENT_SCORED", "NODE_LEASES", "NODE_TYPE_VIRTUAL"}


def _constants() -> set[str]:
    common = {
        value
        for name, value in vars(names).items()
        if name.isupper() and isinstance(value, str) and name not in _NOT_NAMES
    }
    return common | {
        pvc.FINALIZER,
        name_server.ANNOTATION_COREFILE,
        downward_api.ANNOTATION_UID,
        downward_api.ANNOTATION_LABELS,
        downward_api.ANNOTATION_ANNOTATIONS,
        downward_api.ANNOTATION_KEY,
        pv.ANNOTATION_SOURCE_OF_VOLUME,
        pv.DRIVER,
        binder_pod.ANNOTATION_CLAIMS,
        binder_pod.LABEL_BINDER_OF,
        shared.LABEL_SHARED,
        shared.LABEL_GUEST,
        shared.ANNOTATION_USED_IN,
        shared.node_label(""),
    }


@pytest.mark.parametrize("page", reference.PAGES)
def test_generated_pages_are_up_to_date(page):
    """The failure names the command that updates them."""
    text = reference.PAGES[page]()
    assert reference.stale({page: text}) == [], f"docs/reference/{page} is stale: run {COMMAND}"


@cache
def _flags_page() -> str:
    return flags.render()


@pytest.mark.parametrize("program", flags.PROGRAMS)
def test_every_flag_is_in_the_page(program):
    """In the section of its program."""
    section = _flags_page().split(f"\n## {program}\n")[1].split("\n## ")[0]
    elsewhere = {"-h", "--help"}
    if program in {"virtual-node check", "virtual-node inspect"}:
        elsewhere |= flags.flag_names(DAEMON)  # they accept the daemon's flags, too
    missing = [name for name in flags.flag_names(program) - elsewhere if f"`{name}`" not in section]
    assert missing == []


@pytest.mark.parametrize("root", [virtual_node.config.types.Config, multi_scheduler.config.Config])
def test_every_field_has_a_description(root):
    assert [path for path, meaning in configuration.paths(root) if not meaning] == []


def test_nested_fields_have_their_complete_path():
    """Also in a list of objects."""
    assert "`clusters[].nodes[].capacity.reserve`" in configuration.render()


def test_every_right_is_in_the_page():
    """Each right of the table that check tests is a line of the page."""
    text = rights.render()
    found = [
        right
        for program in programs().values()
        for table in rights.tables(importlib.import_module(program.rights)).values()
        for right in table
    ]
    assert len(found) > 30
    assert [right for right in found if f"`{right.full_resource}`" not in text] == []


def test_check_writes_nothing_and_names_the_command(tmp_path, monkeypatch, capsys):
    """With --check a stale page is named, the exit code is 1, and no file is written."""
    monkeypatch.setattr(reference, "DIRECTORY", tmp_path)
    monkeypatch.setattr(reference, "PAGES", {"rights.md": lambda: "new\n"})
    assert reference.main(["--check"]) == 1
    assert COMMAND in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert reference.main([]) == 0
    assert reference.main(["--check"]) == 0


def test_the_page_has_exactly_the_public_names():
    rows = _ROW.findall(NAMES_PAGE.read_text(encoding="utf-8"))
    assert set(rows) == _constants()
    assert len(rows) == len(set(rows))
