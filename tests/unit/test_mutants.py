"""Which changes ``tests.mutants`` makes, and which tests it runs for them."""

from __future__ import annotations

from pathlib import Path

from tests.mutants import Mutant, closest, mutants

SOURCE = b'''def f(a):
    """Is 1."""
    if a < 1 and not a:
        return True
    return a
'''


def test_changes_comparisons_constants_conditions_results_and_branches():
    """Text of a docstring stays; every changed text compiles."""
    found = list(mutants("webhook/app.py", SOURCE))
    changed = {mutant.source(SOURCE).decode() for mutant in found}
    assert {mutant.text for mutant in found} == {
        "(a) <= (1)", "2", "(not (a < 1 and (not a)))", "((a < 1) or (not a))", "pass", "False", "None",
    }  # fmt: skip
    assert all(compile(text, "app.py", "exec") for text in changed)
    assert all("Is 1." in text for text in changed)


def test_runs_the_tests_of_the_modules_name_folder_and_importers(tmp_path: Path):
    tests = {
        "tests/unit/webhook/test_app.py": {"webhook.app"},
        "tests/unit/webhook/test_state.py": {"webhook.app", "webhook.state"},
        "tests/unit/webhook/test_other.py": set[str](),
        "tests/unit/swarm/test_start.py": {"webhook.app"},
        "tests/unit/swarm/test_spec.py": {"swarm.spec"},
    }
    assert closest(Mutant("webhook/app.py", 1, 0, 0, ""), tests) == [*tests][:4]
