"""Quotations in hand-written pages are in the source: reasons, log messages, metrics, flags and files."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from hack.docs import flags
from hack.size import PRODUCT

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    "operate/security.md",
    "operate/troubleshooting.md",
    "operate/monitor.md",
    "operate/replicas.md",
    "operate/migrate-from-tensile-kube.md",
    "reference/annotations-and-labels.md",
]
_CODE = re.compile(r"`([^`\n]+)`")
_FLAG = re.compile(r"(?<![\w-])--[a-zA-Z][\w.-]*[\w]")
_REASON = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]+)+")
_METRIC = re.compile(r"(?:virtual_node|workqueue|rest_client)_[a-z_]+[a-z]")
_FILE = re.compile(r"(?:[\w-]+/)+[\w-]+\.(?:py|md|yaml)")
NOT_OURS = {
    *("--all-namespaces", "--as", "--field-selector", "--force", "--from", "--grace-period", "--patch"),
    *("--previous", "--replicas", "--show-labels", "--subresource", "--type", "--template", "--timeout"),
    *("--kubelet-certificate-authority", "--ignore-daemonsets", "--delete-emptydir-data", "--dry-run"),
    *("--sort-by", "--resource-version", "--raw", "--tail", "--since", "--ignore-not-found", "--selector"),
    *("--klog.v", "--version", "--help"),
    *("--node-monitor-grace-period", "--bind-address", "--overwrite", "--wait", "--authorization-mode"),
    "--cluster-signing-duration",
}
"""Flags of kubectl, helm and the control plane, and those that no parser declares."""
ALERTS = (
    "VirtualNodeDown",
    "VirtualNodeClusterDown",
    "VirtualNodeConfigRejected",
    "VirtualNodeMirrorLagHigh",
    "VirtualNodeQueueBacklog",
    "VirtualNodeApiErrors",
    "VirtualNodeWatchRestarts",
    "VirtualNodeCertificateExpiring",
    "VirtualNodeTokenExpiring",
    "VirtualNodeWebhookDown",
    "VirtualNodeWebhookErrors",
    "VirtualNodeExtenderDown",
    "VirtualNodeExtenderErrors",
    "VirtualNodeDeschedulerStuck",
)
KUBERNETES = {"FailedScheduling"}
"""Event reasons that Kubernetes writes, not this project."""


def _text(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


@cache
def _source() -> str:
    files = (path for package in PRODUCT for path in sorted((ROOT / package).rglob("*.py")))
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


@cache
def _known_flags() -> set[str]:
    return set().union(*(flags.flag_names(program) for program in flags.PROGRAMS))


@pytest.mark.parametrize("page", PAGES)
def test_quoted_metrics_exist(page):
    quoted = {
        name for code in _CODE.findall(_text(page)) for name in _METRIC.findall(code) if "/" not in code
    }
    unknown = [name for name in quoted if f'"{re.sub("_(bucket|count|sum)$", "", name)}"' not in _source()]
    assert unknown == []


def test_quoted_reasons_and_log_messages_exist():
    """Those of the troubleshooting tables are strings of the source."""
    codes = set(_CODE.findall(_text("operate/troubleshooting.md")))
    reasons = {code for code in codes if _REASON.fullmatch(code)} - KUBERNETES
    messages = {code.strip('"') for code in codes if code.startswith('"')}
    assert len(reasons) > 20
    assert len(messages) > 15
    assert [one for one in reasons if f'"{one}"' not in _source() and f"{one}:" not in _source()] == []
    assert [one for one in messages if one not in _source()] == []


def test_troubleshooting_has_many_rows_of_equal_length():
    """Symptom, cause, and what to do; faults also have a severity."""
    tables = re.findall(r"(?:^\|.*\n)+", _text("operate/troubleshooting.md"), re.MULTILINE)
    assert sum(table.count("\n") - 2 for table in tables) > 25
    for table in tables:
        rows = table.replace("\\|", "").splitlines()
        assert [row for row in rows if row.count("|") != rows[0].count("|")] == []
        assert rows[0].endswith("| what to do |")


@pytest.mark.parametrize("page", PAGES)
def test_quoted_flags_exist(page):
    """In a program of the project, or a known other one."""
    found = {name for name in _FLAG.findall(_text(page)) if not name.startswith("--klog")}
    assert sorted(found - _known_flags() - NOT_OURS) == []


@pytest.mark.parametrize("page", PAGES)
def test_files_given_as_evidence_exist(page):
    named = {file for code in _CODE.findall(_text(page)) for file in _FILE.findall(code)}
    assert [file for file in named if not ((ROOT / file).exists() or (ROOT / "docs" / file).exists())] == []


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_a_runbook(alert):
    """With meaning, impact, diagnosis and mitigation under the alert's own heading."""
    section = _text("operate/monitor.md").split(f"\n### {alert}\n")[1].split("\n#")[0]
    parts = re.findall(r"^- \*\*(\w+)\.\*\*", section, re.MULTILINE)
    assert parts == ["Meaning", "Impact", "Diagnosis", "Mitigation"]
