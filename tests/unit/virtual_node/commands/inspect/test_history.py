"""The history: new, persisting, fixed and unknown findings, and where it is stored."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from controller_runtime.client.client import Client
from controller_runtime.errors import ConfigError, NotFound
from tests.thorough import some
from tests.unit.virtual_node.commands.healthy_clusters import NOW, healthy
from virtual_node.commands import inspect as command
from virtual_node.examine import inspections as history
from virtual_node.examine.codes import Severity
from virtual_node.examine.inspections import Inspection, RecordedFinding, Row
from virtual_node.examine.snapshot import Snapshot, objects

NO_CLIENT = cast("Client", None)


def found(name: str, check: str = "leaked", cluster: str = "paris", severity: str = "warning") -> Row:
    """Return a finding about an object."""
    return Row(Severity(severity), check, cluster, "Pod", f"shop/{name}", f"{name} is bad")


def runs(*steps: tuple[list[Row], dict[str, Any]]) -> Inspection:
    """Return the history of hourly runs; each has its findings and changes of the lower cluster's facts."""
    recorded = Inspection()
    for hour, (findings, changes) in enumerate(steps):
        facts = replace(healthy(), now=NOW + timedelta(hours=hour))
        for name, value in changes.items():
            if name == "unread":
                value = {objects(kind): why for kind, why in value.items()}  # noqa: PLW2901
            setattr(facts.lowers[0], name, value)
        recorded = history.compare(recorded, facts, findings)
    return recorded


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], {}),
        ([([found("a")], {})], {"a": ("new", 0)}),
        ([([found("a")], {}), ([found("a"), found("b")], {})], {"a": ("persisting", 0), "b": ("new", 1)}),
        ([([found("a")], {}), ([], {})], {"a": ("fixed", 0)}),
        # A fixed finding is reported once, and is new if it occurs again.
        ([([found("a")], {}), ([], {}), ([], {})], {}),
        ([([found("a")], {}), ([], {}), ([found("a")], {})], {"a": ("new", 2)}),
        # What could not be read is not fixed, and keeps its age.
        ([([found("a")], {}), ([], {"error": "no answer"})], {"a": ("unknown", 0)}),
        ([([found("a")], {}), ([], {"unread": {"Pod": "forbidden"}})], {"a": ("unknown", 0)}),
        ([([found("a")], {}), ([], {"error": "no answer"}), ([found("a")], {})], {"a": ("persisting", 0)}),
        ([([found("a")], {}), ([], {"error": "no answer"}), ([], {})], {"a": ("fixed", 0)}),
        ([([found("a")], {}), ([found("x", "rule", "upper", "error")], {})], {"a": ("unknown", 0), "x": ("new", 1)}),
        # A missing right that only some checks need does not affect the findings of others.
        ([([found("a")], {}), ([], {"unread": {"MutatingWebhookConfiguration": "forbidden"}})], {"a": ("fixed", 0)}),
        ([([found("a")], {}), ([found("a", severity="error")], {})], {"a": ("persisting", 0)}),
        ([([found("a", severity="info")], {})], {}),
    ],
)  # fmt: skip
def test_states(steps: list[tuple[list[Row], dict[str, Any]]], expected: dict[str, tuple[str, int]]) -> None:
    """State and hour of the first run in a row, by object."""
    states = {
        one.object.removeprefix("shop/"): (one.state, int(one.since[11:13])) for one in runs(*steps).findings
    }
    assert states == expected


def test_runs_are_counted_and_limited():
    """Each run has its numbers, and the history does not grow without end."""
    recorded = runs(([found("a", severity="error"), found("b")], {}), ([found("b"), found("c")], {}))
    last = recorded.runs[-1]
    assert (last.errors, last.warnings, last.new, last.fixed) == (0, 2, 1, 1)
    many = [found(str(number)) for number in range(3000)]
    recorded = runs(*[(many, {})] * 2)
    assert len(recorded.findings) == 1000
    for _ in range(200):
        recorded = history.compare(recorded, healthy(), many[:1])
    assert len(recorded.runs) == 100


def test_findings_that_were_cut_off_are_not_new():
    """Only a finding that is more severe than those is known to be new."""
    many = [found(f"{number:04}") for number in range(1500)]
    recorded = runs(
        (many[:900], {}), (many, {}), (many, {}), ([*many[200:], found("x", severity="error")], {})
    )
    assert [(run.new, run.fixed) for run in recorded.runs] == [(900, 0), (600, 0), (0, 0), (1, 200)]
    assert [(one.object, one.state) for one in recorded.findings if one.state != "persisting"] == [
        ("shop/x", "new")
    ]
    hours = [int(one.since[11:13]) for one in recorded.findings[1:]]
    assert hours == [0] * 700 + [1] * 100 + [2] * 199


@pytest.mark.parametrize("text", some(["\U0001f4a5", '"', "\x01x", "a"], 2))
def test_a_history_fits_into_a_config_map(text: str, capsys: pytest.CaptureFixture[str]):
    """Names and messages are cut off, also those of earlier histories; a finding with a long name keeps its age."""
    many = [
        one._replace(message=text * 400, object=one.object + text * 400)
        for one in (found(f"{number}-", "no-disruption-budget") for number in range(1000))
    ]
    huge = RecordedFinding(
        state="persisting", since="2025-12-31T00:00:00Z", severity="error", check="pressure", cluster="paris",
        kind="Node", object=text * 10_000, message="",
    )  # fmt: skip
    facts = healthy()
    facts.upper.fail("no answer")
    recorded = history.compare(Inspection(findings=[huge]), facts, many)
    recorded = history.compare(recorded, facts, many)
    assert (len(recorded.findings), recorded.findings[0].state) == (1000, "unknown")
    assert len(msgspec.json.encode(recorded)) < 900 * 1024
    assert {one.state for one in recorded.findings[1:]} == {"persisting"}
    command.show(facts, many, recorded, form="json", headers=True)
    states = [one.get("state") for one in json.loads(capsys.readouterr().out)["findings"]]
    assert states[:999] == ["persisting"] * 999


async def test_a_file_is_created_and_replaced(tmp_path: Path):
    """Its content is as it was written; other content is not overwritten."""
    target = str(tmp_path / "history.json")
    assert await history.read(target, NO_CLIENT) == Inspection()
    recorded = runs(([found("a")], {}))
    await history.write(target, NO_CLIENT, recorded)
    assert await history.read(target, NO_CLIENT) == recorded
    assert [path.name for path in tmp_path.iterdir()] == ["history.json"]
    (tmp_path / "clusters.yaml").write_text("clusters: []", encoding="utf-8")
    with pytest.raises(ConfigError, match="is not a history of inspect"):
        await history.read(str(tmp_path / "clusters.yaml"), NO_CLIENT)


async def test_a_config_map_is_created_and_patched():
    """Only its key is written, so that labels and other keys stay."""

    class Upper:
        stored: dict[str, Any] | None = None

        async def get(self, _: object, name: str, *, namespace: str) -> dict[str, Any]:
            if self.stored is None:
                raise NotFound("no", code=404)
            assert (namespace, name) == ("system", "runs")
            return self.stored

        async def patch(self, _: object, name: str, patch: dict[str, Any], **__: object) -> None:
            await self.get(_, name, namespace="system")
            assert self.stored is not None
            self.stored["data"] |= patch["data"]

        async def create(self, _: object, body: dict[str, Any]) -> None:
            self.stored = body

    upper = Upper()
    client, target = cast("Client", upper), "configmap/system/runs"
    for recorded in (runs(([found("a")], {})), runs(([found("b")], {}))):
        await history.write(target, client, recorded)
        assert await history.read(target, client) == recorded


@pytest.mark.parametrize("target", ["configmap/runs", "configmap/a/b/c", "configmap/A/b"])
def test_a_wrong_config_map_is_refused(target: str):
    """It would otherwise be taken for a file."""
    with pytest.raises(ConfigError, match="is not configmap/NAMESPACE/NAME"):
        history.is_config_map(target)


def test_the_report_has_states(capsys: pytest.CaptureFixture[str]):
    """As a column and as data, with fixed findings; without a history there is no such column."""
    facts: Snapshot = replace(healthy(), now=NOW + timedelta(hours=5))
    findings = [found("new"), found("old")]
    recorded = runs(([found("old"), found("gone")], {}))
    recorded = history.compare(recorded, facts, findings)
    command.show(facts, findings, recorded, form="table", headers=True)
    lines = [line.split()[:6] for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines[:4]] == ["STATE", "new", "5", "fixed"]
    command.show(facts, findings, recorded, form="json", headers=True)
    data = json.loads(capsys.readouterr().out)
    assert [(one["object"], one["state"]) for one in data["findings"]] == [
        ("shop/new", "new"),
        ("shop/old", "persisting"),
    ]
    assert [one["object"] for one in data["fixed"]] == ["shop/gone"]
    assert data["runs"][-1]["fixed"] == 1
    command.show(facts, findings, None, form="table", headers=True)
    assert capsys.readouterr().out.startswith("SEVERITY")
