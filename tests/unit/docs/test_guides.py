"""The guides are correct: YAML that parses, values of the chart, flags of parsers. Their links: ``hack.docs.links``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import multi_scheduler.config
from clusterset.config import FORMER_KINDS, KIND, Cluster
from controller_runtime.apimachinery.decoding import convert
from hack.docs import flags, links
from hack.programs import DAEMON
from virtual_node.config import file as config_file

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
INDEX = DOCS / "README.md"
INDEXES = (INDEX, DOCS / "decisions" / "README.md")
PAGES = sorted(DOCS.rglob("*.md"))
VALUES: dict[str, Any] = yaml.load(
    (ROOT / "charts" / "virtual-node" / "values.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader
)
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_SET = re.compile(r"""--set[ =]['"]?([\w.\[\]]+)=""")
_VALUE = re.compile(r"`((?:[a-z]\w*\.)+\w+)=[^`]*`")
ORDER = ["Start", "Use", "Operate", "Reference", "Evidence"]
ids = [str(page.relative_to(DOCS)) for page in PAGES]


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def _blocks(page: Path, *languages: str) -> list[str]:
    """Yield fenced blocks of those languages, without the indentation of their list."""
    return [
        "\n".join(line.removeprefix(indent) for line in body.splitlines())
        for indent, language, body in _FENCE.findall(_text(page))
        if language in languages
    ]


def _is_value(path: str) -> bool:
    """Report whether the chart has a value of that path; elements of lists and of empty maps are the user's own."""
    found: Any = VALUES
    for part in re.sub(r"\[\d+\]", ".0", path).split("."):
        if isinstance(found, list) or found == {}:
            return True
        if not isinstance(found, dict) or part not in found:
            return False
        found = found[part]
    return True


def _paths(given: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for key, value in given.items():
        if isinstance(value, dict) and value:
            yield from _paths(value, f"{before}{key}.")
        else:
            yield f"{before}{key}"


def _values_files(page: Path) -> list[dict[str, Any]]:
    return [yaml.safe_load(block) for block in _blocks(page, "yaml") if block.startswith("# values.yaml")]


def _commands(page: Path) -> Iterator[list[str]]:
    """Words of each command in a page's shell blocks."""
    for block in _blocks(page, "sh", "console"):
        is_console = "$ " in block
        for line in block.replace("\\\n", " ").splitlines():
            if is_console and not line.startswith("$ "):
                continue  # what the command says
            for command in re.split(r" \| | && |;", line.removeprefix("$ ").partition(" #")[0]):
                yield command.split()


def test_every_page_is_in_the_index():
    linked = {
        (index.parent / target).resolve() for index in INDEXES for target, _ in links.links(index) if target
    }
    assert [str(page.relative_to(DOCS)) for page in PAGES if page not in linked | {INDEX}] == []


def test_the_index_begins_with_pages_for_new_users():
    """From the introduction to the reference, in reading order."""
    assert re.findall(r"^## (.+)$", _text(INDEX), re.MULTILINE) == ORDER
    assert [line for line in _text(INDEX).splitlines() if line.startswith("- ") and ": " not in line] == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_yaml_parses(page):
    """And objects of Kubernetes have kind and name."""
    for block in _blocks(page, "yaml"):
        for document in yaml.safe_load_all(block):
            if isinstance(document, dict) and "apiVersion" in document:
                assert document["kind"]
                is_file = document["apiVersion"].startswith(("virtual-node.io/", "descheduler/"))
                assert is_file or document["metadata"]["name"]


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_values_are_the_charts(page):
    named = _SET.findall(_text(page))
    named += [path for path in _VALUE.findall(_text(page)) if path.partition(".")[0] in VALUES]
    named += [path for values in _values_files(page) for path in _paths(values)]
    assert [path for path in named if not _is_value(path)] == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_clusters_in_values_are_configurations(page):
    """The virtual node, which refuses unknown fields, accepts each cluster's ``config``."""
    for values in _values_files(page):
        for cluster in (values.get("virtualNode") or {}).get("clusters") or ():
            assert cluster.keys() <= {"name", "kubeconfig", "kubeconfigSecret", "config"}
            document = {"name": cluster["name"], "kubeconfig": "a", **cluster.get("config", {})}
            convert(document, Cluster)


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_complete_configuration_files_are_accepted(page):
    """By each program that reads such a file."""
    for block in _blocks(page, "yaml"):
        document = next(iter(yaml.safe_load_all(block)))
        if isinstance(document, dict) and document.get("kind") in {KIND, *FORMER_KINDS}:
            multi_scheduler.config.parse(block)
            config_file.parse(block)


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_flags_of_commands_exist(page):
    """The parser accepts each of the project's commands in a page."""
    unknown = []
    for words in _commands(page):
        if not words or not words[0].startswith("virtual-node"):
            continue
        plain = [word for word in words if not word.startswith("-")]
        program = max(
            (name for name in flags.PROGRAMS if plain[: len(name.split())] == name.split()), key=len
        )
        known = set(flags.flag_names(program)) | {"--help", "-h", "-o"}
        if program in {"virtual-node check", "virtual-node inspect", "virtual-node cleanup"}:
            known |= set(flags.flag_names(DAEMON))
        given = {word.partition("=")[0] for word in words if word.startswith("-")}
        unknown += [f"{program} {flag}" for flag in sorted(given - known)]
    assert unknown == []


def test_the_checks_find_something():
    """The guides contain what is checked above."""
    guides = [DOCS / name for name in ("operate/install.md", "operate/add-a-cluster.md", "use/schedule.md")]
    assert all(_values_files(page) for page in guides)
    assert len([words for page in guides for words in _commands(page) if words and words[0] == "helm"]) >= 8
    assert sum("--nodename" in words for page in guides for words in _commands(page)) >= 2
    assert not _is_value("virtualNode.replica")
    assert not _is_value("nothing")
    assert _is_value("virtualNode.clusters[0].name")
