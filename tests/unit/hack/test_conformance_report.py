"""The printed results of Kubernetes' own e2e suite."""

from __future__ import annotations

from hack.conformance import report
from hack.conformance.report import Outcome


def _outcomes(**states: str) -> dict[str, Outcome]:
    return {name: Outcome(name, state, 1.0, f"{name} broke") for name, state in states.items()}


def test_a_single_run_names_failures_with_their_reasons():
    """Tests that pass are only counted."""
    text = report.summary(_outcomes(a="passed", b="failed", c="timedout"))
    assert text.splitlines()[0] == "1 of 3 pass"
    assert [line.split()[0] for line in text.splitlines()[1:]] == ["failed", "b", "timedout", "c"]


def test_a_comparison_counts_only_tests_that_pass_directly():
    """Each failure is named with its reason; a test missing in the second run counts as failed."""
    text = report.render(_outcomes(a="passed", b="failed", c="passed"), _outcomes(a="passed", b="failed"))
    assert "of those that pass directly:     1 of 2 pass through it = 50.0%" in text
    assert "  not run   c" in text
    assert text.endswith("fail either way:\n  failed    b\n            b broke")
