"""Edits ``virtualNode.clusters`` in the text of a values file; comments, the order of keys and line ends stay. Does no IO.

The edited text is parsed again and compared with the expected values, so unsupported layouts are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from controller_runtime.errors import ConfigError
from virtual_node.commands.lower_cluster import helm_release

_BY_HAND = (
    "this layout is not edited: {what} virtualNode.clusters by hand, then run the command again: {entry}"
)


def parse(text: str, *, source: str) -> dict[str, Any]:
    """Return the values in a file's text.

    Raises:
        ConfigError: the text is not a YAML map, or ``virtualNode`` is not a map.
    """
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())}") from None
    if found is None:
        return {}
    if not isinstance(found, dict) or not isinstance(found.get("virtualNode") or {}, dict):
        raise ConfigError(f"{source}: not values of the chart: expected a map with virtualNode")
    return found


def added(text: str, entry: Mapping[str, Any], *, source: str) -> str:
    """Return the text with a cluster added at the end of ``virtualNode.clusters``.

    Args:
        text: content of the file.
        entry: the cluster's entry.
        source: name of the file, for errors.

    Raises:
        ConfigError: the layout is not supported; the message contains the entry.
    """
    before = parse(text, source=source)
    own = _member(yaml.compose(text), "virtualNode")
    clusters = _member(own[1], "clusters") if own else None
    lines = text.splitlines()
    if clusters and isinstance(clusters[1], yaml.SequenceNode) and not clusters[1].flow_style:
        column = clusters[1].start_mark.column
        at = _end(clusters[1])
        lines[at:at] = _item(entry, column)
    elif clusters and not clusters[1].value and clusters[0].end_mark.line == clusters[1].start_mark.line:
        key = clusters[0].start_mark
        comment = lines[key.line][clusters[1].end_mark.column :]
        lines[key.line] = f"{' ' * key.column}clusters:{comment}"
        lines[key.line + 1 : key.line + 1] = _item(entry, key.column + 2)
    elif own and not clusters and isinstance(own[1], yaml.MappingNode) and not own[1].flow_style:
        first = own[1].start_mark
        lines[first.line : first.line] = [f"{' ' * first.column}clusters:", *_item(entry, first.column + 2)]
    elif not own:
        lines += ["virtualNode:", "  clusters:", *_item(entry, 4)]
    changed = _joined(lines, text)
    _compare(changed, helm_release.with_cluster(before, entry), source, "add to", entry)
    return changed


def removed(text: str, name: str, *, source: str) -> str:
    """Return the text without the named cluster.

    Raises:
        ConfigError: the layout is not supported.
    """
    before = parse(text, source=source)
    own = _member(yaml.compose(text), "virtualNode")
    clusters = _member(own[1], "clusters") if own else None
    lines = text.splitlines()
    if clusters and isinstance(clusters[1], yaml.SequenceNode) and not clusters[1].flow_style:
        for number, cluster in enumerate(helm_release.clusters(before)):
            if cluster.get("name") == name:
                node = clusters[1].value[number]
                del lines[node.start_mark.line : _end(node)]
        if len(clusters[1].value) == 1:
            key = clusters[0].start_mark
            lines[key.line] = f"{' ' * key.column}clusters: []"
    changed = _joined(lines, text)
    _compare(changed, helm_release.without_cluster(before, name), source, "remove from", {"name": name})
    return changed


def _member(node: yaml.Node | None, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    """Return the key and value nodes of a map's member; None: not a map, or no such key."""
    if not isinstance(node, yaml.MappingNode):
        return None
    return next(((name, value) for name, value in node.value if name.value == key), None)


def _end(node: yaml.Node) -> int:
    """Return the number of the line after a node.

    The node's own end mark lies after comments that follow it.
    """
    if isinstance(node, yaml.CollectionNode) and node.value and not node.flow_style:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.line + (1 if node.end_mark.column else 0))


def _joined(lines: Sequence[str], text: str) -> str:
    """Return lines with the line ends of a text, so that a version control system shows only the changed lines."""
    return ("\r\n" if "\r\n" in text else "\n").join([*lines, ""])


def _item(entry: Mapping[str, Any], column: int) -> list[str]:
    text = yaml.safe_dump([dict(entry)], sort_keys=False)
    return [f"{' ' * column}{line}" for line in text.splitlines()]


def _compare(text: str, wanted: Mapping[str, Any], source: str, what: str, entry: Mapping[str, Any]) -> None:
    """Refuse an edited text whose values differ from the expected ones; an empty list or map equals a missing one.

    Raises:
        ConfigError: the values differ; the message says what to edit by hand.
    """
    try:
        found = yaml.safe_load(text) or {}
        if _plain(found) == _plain(wanted):
            return
    except (yaml.YAMLError, AttributeError, TypeError):
        pass
    shown = yaml.safe_dump([dict(entry)], sort_keys=False, default_flow_style=True, width=10**6).strip()
    raise ConfigError(f"{source}: {_BY_HAND.format(what=what, entry=shown)}")


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    own = {**(values.get("virtualNode") or {})}
    own["clusters"] = list(own.get("clusters") or ())
    return {**values, "virtualNode": own}
