"""`lower-cluster join --values FILE`: adds or removes one cluster in a file with comments."""

from __future__ import annotations

import pytest
import yaml

from controller_runtime.errors import ConfigError
from virtual_node.commands.lower_cluster import helm_release, values_file

ENTRY = helm_release.entry("tokyo")
BLOCK = """\
# ours
log: {level: debug}  # loud
virtualNode:
  replicas: 1
  clusters:  # all of them
    - name: paris
      kubeconfigSecret: {name: p}
      config:
        nodes:
          - name: paris-cpu
            # the CPU pool
            nodeSelector: {pool: cpu}

# the descheduler
descheduler: {enabled: false}
"""
TEXTS = {
    "a list": BLOCK,
    "a list that is not indented": "virtualNode:\n  clusters:\n  - name: paris\n    kubeconfig: |\n      a: 1\nwebhook: {}\n",
    "an empty list": "virtualNode:\n  clusters: []  # none yet\n  replicas: 1\n",
    "no list": "virtualNode:\n  # one\n  replicas: 1\nlog: {}\n",
    "no virtualNode": "log:\n  level: debug",
    "an empty file": "",
    "only comments": "# values\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_cluster_is_added_and_removed_and_the_rest_stays(text: str):
    """The values are those of the release after `join` and `leave`; no comment is lost."""
    before = yaml.safe_load(text) or {}
    added = values_file.added(text, ENTRY, source="values.yaml")
    assert helm_release.clusters(yaml.safe_load(added)) == [*helm_release.clusters(before), ENTRY]
    removed = values_file.removed(added, "tokyo", source="values.yaml")
    left = helm_release.without_cluster(yaml.safe_load(removed), "tokyo")
    assert left == helm_release.without_cluster(before, "tokyo")
    comments = [line.partition("#")[2] for line in text.splitlines() if "#" in line]
    assert all(one in added for one in comments)
    if text == BLOCK:
        assert removed == text
        assert values_file.removed(text, "paris", source="values.yaml").count("\n") == 8


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_line_ends_of_windows_stay(text: str):
    """Otherwise every line differs in version control."""
    added = values_file.added(text, ENTRY, source="values.yaml")
    windows = values_file.added(text.replace("\n", "\r\n"), ENTRY, source="values.yaml")
    if "\n" in text:
        assert windows == added.replace("\n", "\r\n")
        removed = values_file.removed(windows, "tokyo", source="values.yaml")
        assert removed.count("\r\n") == removed.count("\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("virtualNode: {clusters: [{name: paris, kubeconfig: k}]}", "values.yaml: this layout is not edited: add to"),
        ("virtualNode:\n  clusters: [{name: paris, kubeconfig: k}]\n", r"name: tokyo, kubeconfigSecret"),
        ("virtualNode: &a\n  replicas: 1\nlog: *b\n", "values.yaml: not YAML"),
        ("- a\n", "not values of the chart"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_edited_is_refused_with_the_entry(text: str, words: str):
    """The user gets text to paste; the file is not changed."""
    with pytest.raises(ConfigError, match=words):
        values_file.added(text, ENTRY, source="values.yaml")
