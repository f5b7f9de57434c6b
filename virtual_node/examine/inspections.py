"""The history of ``virtual-node inspect``: the findings of the last run with their age, and the last runs as counts.

It is stored in a file or a ConfigMap.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from controller_runtime import resources
from controller_runtime.apimachinery import timestamps
from controller_runtime.apimachinery.decoding import decoder
from controller_runtime.client.verbs import PatchType, Verbs
from controller_runtime.errors import ApiError, ConfigError, NotFound
from virtual_node.examine.clusters import OPTIONAL
from virtual_node.examine.codes import Code, Severity
from virtual_node.examine.objects import one_line
from virtual_node.examine.snapshot import Snapshot

KEY = "history.json"
"""Key of the history in a ConfigMap's data."""
NEW: Literal["new"] = "new"
PERSISTING: Literal["persisting"] = "persisting"
FIXED: Literal["fixed"] = "fixed"
UNKNOWN: Literal["unknown"] = "unknown"
"""States of a finding. Unknown: the previous run had it, and this run could not read its object."""

_CONFIG_MAP = re.compile(r"configmap/(?P<namespace>[a-z0-9-]{1,63})/(?P<name>[a-z0-9.-]{1,253})")
_RUNS = 100
"""Number of runs that are kept."""
_FINDINGS = 1000
"""Maximum number of findings, the most severe first, because a ConfigMap has at most 1 MiB."""
_OBJECT, _MESSAGE = 320, 300
"""Maximum bytes of an object and a message as JSON, so that ``_FINDINGS`` findings have less than 900 KiB."""


class RecordedFinding(msgspec.Struct, frozen=True, kw_only=True):
    """An error or warning of the last run or, if fixed or unknown, of the previous run."""

    state: Literal["new", "persisting", "fixed", "unknown"]
    since: str
    """RFC 3339 time of the first run in a row that had the finding."""
    severity: Literal["error", "warning"]
    check: str
    cluster: str
    kind: str
    object: str
    message: str

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """Key that is equal for the same finding of two runs."""
        return self.check, self.cluster, self.kind, self.object


class InspectionRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run as counts."""

    time: str
    errors: int
    warnings: int
    new: int
    fixed: int


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a history."""

    format: Literal["virtual-node.io/inspection-history/v1"] = "virtual-node.io/inspection-history/v1"
    findings: list[RecordedFinding] = []
    runs: list[InspectionRun] = []
    """The last runs, the oldest first."""


parse = decoder(Inspection)
"""Returns the content of a history; raises msgspec.DecodeError if a text is not a history."""


class Row(NamedTuple):
    """A finding as the report and the history have it."""

    severity: Severity
    check: str
    """Name of the check, such as leaked, missing or drift; stable, for programs."""
    cluster: str
    kind: str
    object: str
    """``namespace/name``, or ``name``."""
    message: str
    next_step: str = ""

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """Key in the history, where long names of objects are cut off, see ``RecordedFinding``."""
        return self.check, self.cluster, self.kind, _cut(self.object, _OBJECT)


def compare(before: Inspection, snapshot: Snapshot, rows: Sequence[Row]) -> Inspection:
    """Return the history with a new run; findings of severity info are not recorded.

    A finding that a full history may have cut off is not new. It counts as persisting since the previous run.

    Args:
        before: the history with the previous run.
        snapshot: what was read. A missing finding counts as fixed only if its cluster was read.
        rows: the findings of this run.
    """
    now = timestamps.rfc3339(snapshot.now)
    known = {each.identity: each for each in map(_limited, before.findings) if each.state != FIXED}
    # A full history may lack findings of the previous run with the severity of its last finding, or a lower one.
    cut = before.findings[-1].severity if len(before.findings) >= _FINDINGS else None
    found: dict[tuple[str, str, str, str], RecordedFinding] = {}
    for one in rows:
        earlier = known.get(one.identity)
        if one.severity is not Severity.INFO:
            severity: Literal["error", "warning"] = "error" if one.severity is Severity.ERROR else "warning"
            check, cluster, kind, name = one.identity
            is_new = earlier is None and (cut is None or severity < cut)
            found[one.identity] = RecordedFinding(
                state=NEW if is_new else PERSISTING,
                since=now if is_new else earlier.since if earlier else before.runs[-1].time,
                severity=severity,
                check=check,
                cluster=cluster,
                kind=kind,
                object=name,
                message=_cut(one.message, _MESSAGE),
            )
    is_complete = not any(row.check == Code.RULE_FAILED.check for row in rows)
    for key, earlier in known.items():
        if key not in found:
            is_judged = is_complete and _is_judged(snapshot, earlier)
            found[key] = msgspec.structs.replace(earlier, state=FIXED if is_judged else UNKNOWN)
    # Errors first, then current before fixed findings, then the oldest, because the end of a long list is cut off.
    recorded = sorted(found.values(), key=lambda one: (one.severity, one.state == FIXED, one.since))
    run = InspectionRun(
        time=now,
        errors=sum(each.severity == "error" and each.state in {NEW, PERSISTING} for each in recorded),
        warnings=sum(each.severity == "warning" and each.state in {NEW, PERSISTING} for each in recorded),
        new=sum(each.state == NEW for each in recorded),
        fixed=sum(each.state == FIXED for each in recorded),
    )
    return Inspection(findings=recorded[:_FINDINGS], runs=[*before.runs, run][-_RUNS:])


def _limited(one: RecordedFinding) -> RecordedFinding:
    """Return a recorded finding with today's limits; an earlier release may have recorded longer texts."""
    return msgspec.structs.replace(one, object=_cut(one.object, _OBJECT), message=_cut(one.message, _MESSAGE))


def _cut(text: str, limit: int) -> str:
    """Return the text in one line that has at most ``limit`` bytes as JSON without quotes."""
    line = one_line(text, limit)
    while (excess := len(msgspec.json.encode(line)) - 2 - limit) > 0:
        line = f"{line[: -2 - excess // 4]}…"  # a character has at most 4 bytes
    return line


def _is_judged(snapshot: Snapshot, finding: RecordedFinding) -> bool:
    """Report whether this run could have found a finding again: both its cluster and the upper one were read."""
    clusters = [snapshot.upper, *(lower for lower in snapshot.lowers if lower.name == finding.cluster)]
    unread = {fact.kind for cluster in clusters for fact in cluster.unread if fact.kind}
    is_read = not any(each.error for each in clusters) and unread <= OPTIONAL.keys()
    return is_read and not (finding.kind in OPTIONAL and unread)


def is_config_map(target: str) -> bool:
    """Report whether a history is in a ConfigMap and not in a file.

    Raises:
        ConfigError: the target begins like a ConfigMap's and has no valid names.
    """
    if target.startswith("configmap/") and not _CONFIG_MAP.fullmatch(target):
        raise ConfigError(f"--history: {target} is not configmap/NAMESPACE/NAME")
    return bool(_CONFIG_MAP.fullmatch(target))


async def read(target: str, upper: Verbs) -> Inspection:
    """Return the history at a path or in ``configmap/NAMESPACE/NAME`` of the upper cluster; empty if it does not exist.

    Raises:
        ConfigError: it cannot be read, or is not a history.
    """
    try:
        if place := _CONFIG_MAP.fullmatch(target):
            found = await upper.get(resources.CONFIG_MAPS, place["name"], namespace=place["namespace"])
            text = (found.get("data") or {}).get(KEY, "")
        else:
            text = Path(target).read_text(encoding="utf-8")
    except (NotFound, FileNotFoundError):
        return Inspection()
    except (ApiError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--history: {target} cannot be read: {error}") from None
    try:
        return parse(text) if text.strip() else Inspection()
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"--history: {target} is not a history of inspect: {error}; delete it or choose another"
        ) from None


async def write(target: str, upper: Verbs, history: Inspection) -> None:
    """Store a history where ``read`` finds it.

    Raises:
        ConfigError: it cannot be written.
    """
    text = msgspec.json.encode(history).decode()
    try:
        if place := _CONFIG_MAP.fullmatch(target):
            await _write_config_map(upper, place["namespace"], place["name"], text)
        else:
            fresh = Path(f"{target}.new")
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(target)
    except (ApiError, OSError) as error:
        raise ConfigError(f"--history: {target} cannot be written: {error}") from None


async def _write_config_map(upper: Verbs, namespace: str, name: str, text: str) -> None:
    data = {"data": {KEY: text}}
    try:
        await upper.patch(resources.CONFIG_MAPS, name, data, namespace=namespace, patch_type=PatchType.MERGE)
    except NotFound:
        body = {"metadata": {"name": name, "namespace": namespace}, **data}
        await upper.create(resources.CONFIG_MAPS, body)
