"""Reports of a replica about an unusable configuration file."""

from __future__ import annotations

import asyncio
from typing import Any

import prometheus_client
import pytest
import yaml
from structlog.testing import capture_logs

from clusterset.config import API_VERSION, KIND
from tests.background import working
from virtual_node.config_status import ConfigStatus

POD = {"POD_NAMESPACE": "system", "POD_NAME": "vn-1", "POD_UID": "u-1"}


class _Upper:
    """Records the events."""

    cluster = "upper"

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    async def create(self, _resource: Any, body: Any, *, namespace: str | None = None) -> dict[str, Any]:
        self.events.append({**body, "in": namespace})
        return {}

    async def patch(self, _resource: Any, _name: str, patch: Any, **_more: Any) -> dict[str, Any]:
        self.events.append(patch)
        return {}


def _metric() -> float | None:
    return prometheus_client.REGISTRY.get_sample_value("virtual_node_config_rejected")


def test_the_metric_and_the_log_follow_the_file():
    """One line for each rejection, for any number of reads; 0 again when the file is valid."""
    status = ConfigStatus("", environment={})
    assert _metric() == 0
    with capture_logs() as logs:
        for reason in ("a: wrong", "a: wrong", "b: wrong"):
            status.reject(reason)
            assert (_metric(), status.rejected) == (1, reason)
        status.accept()
    assert (_metric(), status.rejected) == (0, "")
    assert [(entry["event"], entry["error"]) for entry in logs] == [
        ("configuration not applied", "a: wrong"),
        ("configuration not applied", "b: wrong"),
    ]


def test_reports_fields_that_wait_for_a_restart(tmp_path):
    """Fields outside of clusters are applied only at the start; the warning ends when they have the old values again."""
    path = tmp_path / "config.yaml"

    def read(**fields: Any) -> list[list[str]]:
        path.write_text(yaml.safe_dump({"apiVersion": API_VERSION, "kind": KIND, **fields}), encoding="utf-8")
        with capture_logs() as logs:
            assert status.reread() is not None
        return [entry["fields"] for entry in logs]

    clusters = [{"name": "a", "kubeconfig": "a.kubeconfig"}]
    path.write_text(yaml.safe_dump({"apiVersion": API_VERSION, "kind": KIND}), encoding="utf-8")
    status = ConfigStatus(str(path), environment={})
    assert read(clusters=clusters) == []
    assert read(clusters=clusters, pingInterval=20, clusterID="a-b") == [["clusterID", "pingInterval"]]
    assert read(pingInterval=20) == [["pingInterval"]]
    assert read() == []


@pytest.mark.looptime
async def test_events_of_the_pod_report_the_error_and_its_end():
    """On the replica's own pod, in its namespace; repeated, because API servers delete events within an hour."""
    upper: Any = _Upper()
    status = ConfigStatus("", environment=POD)
    with capture_logs():
        status.reject("file: $.lables")
        async with working(status.publish(upper)):
            await asyncio.sleep(1)
            (first,) = upper.events
            await asyncio.sleep(1300)
            repeated = upper.events[1:]
            status.accept()
            await asyncio.sleep(1000)
    assert first["in"] == "system"
    assert first["involvedObject"].items() >= {"kind": "Pod", "name": "vn-1", "uid": "u-1"}.items()
    assert (first["type"], first["reason"], first["message"]) == (
        "Warning",
        "ConfigurationRejected",
        "file: $.lables",
    )
    assert [event["count"] for event in repeated] == [2, 3]
    assert [event["reason"] for event in upper.events[3:]] == ["ConfigurationApplied"]


@pytest.mark.looptime
@pytest.mark.parametrize("environment", [POD, {}])
async def test_no_event_without_an_error_or_without_a_pod(environment: dict[str, str]):
    """A daemon that runs by hand has no object for events."""
    upper: Any = _Upper()
    status = ConfigStatus("", environment=environment)
    with capture_logs():
        async with working(status.publish(upper)):
            await asyncio.sleep(700)
            if not environment:
                status.reject("wrong")
                await asyncio.sleep(700)
    assert upper.events == []
