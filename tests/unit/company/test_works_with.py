"""The table of docs/reference/works-with.md, and manifests that are fitted to a node."""

from __future__ import annotations

from typing import Any

import pytest

from tests.company import manifests
from tests.company.__main__ import main
from tests.company.entries import ENTRIES
from tests.company.works_with import PAGE, Row, difference, merged


def _row(software: str, result: str = "works") -> Row:
    return Row(software, "v1", "a | b", result, "none", "2026-01-01")


def test_a_new_row_replaces_the_row_of_the_same_software_only():
    page = merged(merged("", [_row("b"), _row("a")]), [_row("b", "fails: x")])
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0].strip("| ") for line in lines] == ["software", "---", "a", "b"]
    assert "works" in lines[2]
    assert "fails: x" in lines[3]
    assert merged(page, []) == page


@pytest.mark.parametrize(
    ("direct", "virtual", "text"),
    [
        ({"a": 1}, {"a": 1}, "none"),
        ({"a": 1}, {"a": 2}, "a: 1 directly, 2 on the virtual node"),
        ({"a": ["x", "y"]}, {"a": ["y", "z"]}, "a: without x, with z"),
        ({"a": []}, {}, "a: none directly, missing on the virtual node"),
        ({}, {"a": True}, "a: missing directly, True on the virtual node"),
    ],
)
def test_differences_name_the_observation(direct, virtual, text):
    assert difference(direct, virtual) == text


def test_pods_of_published_workloads_run_on_the_node_with_local_images():
    container = {
        "name": "manager",
        "image": "registry/x:main",
        "imagePullPolicy": "Always",
        "resources": {"requests": {}},
    }
    published: dict[str, Any] = {
        "kind": "Deployment",
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    fitted = manifests.fitted(
        published, {"manager": "local"}, {"nodeSelector": {"a": "b"}}, {"manager": ["--x"]}
    )
    spec = fitted["spec"]["template"]["spec"]
    assert spec["nodeSelector"] == {"a": "b"}
    assert spec["containers"] == [
        {"name": "manager", "image": "local", "imagePullPolicy": "IfNotPresent", "args": ["--x"]}
    ]
    assert published["spec"]["template"]["spec"]["containers"] == [container]


def test_only_the_right_to_read_kube_system_stays_there():
    subject = {"kind": "ServiceAccount", "name": "a", "namespace": "kube-system"}
    binding = {"kind": "RoleBinding", "metadata": {"namespace": "kube-system"}, "subjects": [subject]}
    moved = manifests.moved(binding, "own")
    assert moved["metadata"]["namespace"] == "kube-system"
    assert moved["subjects"][0]["namespace"] == "own"
    service = {
        "kind": "APIService",
        "metadata": {"name": "x"},
        "spec": {"service": {"namespace": "kube-system"}},
    }
    assert manifests.moved(service, "own")["spec"]["service"]["namespace"] == "own"


def test_values_of_definitions_may_be_an_equals_sign():
    assert manifests.parsed("a: [=, '!=']\n---\n") == [{"a": ["=", "!="]}]


def test_every_software_has_a_pinned_version():
    for software in ENTRIES.values():
        assert software.versions
        assert software.packages or software.programs or software.libraries


def test_every_row_of_the_page_is_software_of_the_suite():
    page = PAGE.read_text(encoding="utf-8")
    rows = [line.split(" | ")[0].strip("| ") for line in page.splitlines() if line.startswith("| ")][2:]
    assert rows
    assert set(rows) <= set(ENTRIES)


def test_software_that_the_direct_run_installs_is_not_run_on_the_virtual_node_only(capsys):
    with pytest.raises(SystemExit):
        main(["stern", "kueue", "--only", "virtual"])
    assert "the direct run installs what kueue needs" in capsys.readouterr().err
