"""Helm releases of the chart for tests: records in Secrets, and a fake helm that records its arguments."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.virtual_node.commands.installations import thing

SPACE = "virtual-node-system"
CHART = {
    "metadata": {"name": "virtual-node", "version": "0.1.0", "apiVersion": "v2"},
    "values": {"virtualNode": {"clusters": []}, "replicas": None},
    "schema": base64.b64encode(b"{}").decode(),
    "templates": [{"name": "templates/a.yaml", "data": base64.b64encode(b"a: {{ 1 }}").decode()}],
    "files": [{"name": "files/rights.yaml", "data": ""}],
}
TOKYO = {"name": "tokyo", "kubeconfigSecret": {"name": "virtual-node-tokyo"}}


def record(name: str = "vn", *, status: str = "deployed", version: int = 2, **more: Any) -> dict[str, Any]:
    """Return a release's Secret, packed as Helm packs it: JSON, gzip, base64, and the API's base64."""
    body = {"name": name, "namespace": SPACE, "version": version, "config": None, "chart": CHART, **more}
    packed = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(body).encode()))).decode()
    labels = {"owner": "helm", "name": name, "status": status}
    made = thing("Secret", f"sh.helm.release.v1.{name}.v{version}", namespace=SPACE, labels=labels)
    return {**made, "data": {"release": packed}}


@pytest.fixture
def helm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a helm on the PATH that records its arguments, the values and the chart's files; its exit code is in ``code``."""
    program = tmp_path / "helm"
    program.write_text(
        f'#!/bin/sh\nP={tmp_path}\necho "$*" > $P/arguments; env > $P/environment; ls $3 > $P/chart; echo "Error: it broke" >&2\n'
        'while [ "$1" != --values ]; do shift; done; cat "$2" > $P/values; exit $(cat $P/code)\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    (tmp_path / "code").write_text("0", encoding="utf-8")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path
