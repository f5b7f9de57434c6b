"""Which label and annotation keys stay in the upper cluster by preset, and what is advised about a gate or webhook."""

from __future__ import annotations

from typing import get_args

import pytest

from clusterset.model import operators
from clusterset.model.operators import OPERATORS, OperatorName
from clusterset.model.policy.copied_keys import KeyPatterns


def test_every_preset_has_patterns():
    """The names of the configuration and of the table are the same."""
    assert list(get_args(OperatorName)) == sorted(OPERATORS)
    assert all(found.patterns for found in OPERATORS.values())


@pytest.mark.parametrize(
    ("preset", "key"),
    [
        ("kueue", "kueue.x-k8s.io/queue-name"),
        ("kueue", "kueue.x-k8s.io/pod-group-total-count"),
        ("jobset", "alpha.jobset.sigs.k8s.io/exclusive-topology"),
        ("jobset", "jobset.sigs.k8s.io/jobset-name"),
        ("leaderworkerset", "leaderworkerset.sigs.k8s.io/worker-index"),
        ("istio", "sidecar.istio.io/inject"),
        ("istio", "istio.io/rev"),
        ("linkerd", "config.linkerd.io/proxy-cpu-request"),
        ("linkerd", "linkerd.io/inject"),
        ("coscheduling", "pod-group.scheduling.sigs.k8s.io"),
        ("coscheduling", "scheduling.x-k8s.io/pod-group"),
        ("koordinator", "quota.scheduling.koordinator.sh/name"),
        ("volcano", "scheduling.k8s.io/group-name"),
        ("volcano", "volcano.sh/queue-name"),
        ("kubeflow", "training.kubeflow.org/job-name"),
        ("opentelemetry", "instrumentation.opentelemetry.io/inject-java"),
        ("spark", "sparkoperator.k8s.io/launched-by-spark-operator"),
    ],
)
def test_preset_matches_the_keys_of_its_program(preset, key):
    """And no other preset does."""
    assert [name for name, found in OPERATORS.items() if found.among([key])] == [preset]


@pytest.mark.parametrize(
    "key",
    ["app", "batch.kubernetes.io/job-name", "app.kubernetes.io/name", "notistio.io/x", "kueue.x-k8s.io"],
)
def test_presets_leave_other_keys(key):
    """A suffix of a domain is not the domain."""
    assert not any(found.among([key]) for found in OPERATORS.values())


@pytest.mark.parametrize(
    ("name", "keys", "causes"),
    [
        ("kueue.x-k8s.io/admission", ["app", "kueue.x-k8s.io/queue-name"], ["kueue.x-k8s.io/queue-name"]),
        ("example.com/approval", ["example.com/team", "app"], ["example.com/team"]),
        ("example.com/approval", ["app", "example.org/x"], []),
        ("approval", ["app", "approval"], []),
        ("rev.namespace.sidecar-injector.istio.io", ["istio.io/rev", "app"], ["istio.io/rev"]),
        ("linkerd-proxy-injector.linkerd.io", ["linkerd.io/inject"], ["linkerd.io/inject"]),
    ],
)
def test_causes_have_the_domain_or_the_program_of_a_gate(name, keys, causes):
    """A webhook's name is a subdomain of its program."""
    assert operators.causes(name, keys) == causes


def test_advice_names_keys_and_setting():
    """Of an unknown program, it names the setting for single keys; without such keys, it is empty."""
    advice = operators.advice(["kueue.x-k8s.io/admission"], ["kueue.x-k8s.io/queue-name", "istio.io/rev"])
    assert "kueue.x-k8s.io/queue-name" in advice
    assert "ignore.presets: [kueue]" in advice
    assert "ignore.labels" in operators.advice(["example.com/approval"], ["example.com/team"])
    assert operators.advice(["example.com/approval"], ["app"]) == ""


def test_advice_about_an_unknown_webhook_names_all_keys_of_known_programs():
    """The webhooks of several programs have generic names, such as vpod.kb.io."""
    keys = ["jobset.sigs.k8s.io/jobset-name", "app"]
    assert operators.advice(["vpod.kb.io"], keys) == ""
    advice = operators.advice(["vpod.kb.io"], keys, guess=True)
    assert "ignore.presets: [jobset]" in advice


def test_key_patterns_match_whole_keys():
    """``among`` keeps the order."""
    assert KeyPatterns(("a/*", "b")).among(["b", "bc", "a/x", "ab/x"]) == ["b", "a/x"]
    assert "anything" not in KeyPatterns()
