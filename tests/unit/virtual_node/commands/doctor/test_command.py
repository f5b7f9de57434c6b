"""``virtual-node doctor``: its output and exit codes."""

from __future__ import annotations

import json

import pytest

from tests.unit.controller_runtime.loopback import failure, reply
from tests.unit.virtual_node.commands.doctor_facts import healthy
from tests.unit.virtual_node.commands.run_command import Person
from virtual_node import cli
from virtual_node.commands import doctor as command
from virtual_node.commands.doctor import judged, sentence
from virtual_node.examine.codes import Link
from virtual_node.examine.snapshot import Snapshot


@pytest.mark.parametrize(("facts", "code"), [(healthy(), 0), (healthy(leases={}), 1)])
def test_output_and_exit_code(
    facts: Snapshot, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A table that ends in one sentence, the same as data, and the exit code of the findings."""

    async def read(_options: object) -> Snapshot:
        return facts

    monkeypatch.setattr(command, "_read", read)
    assert cli.main(["doctor"]) == code
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["LINK", "STATE", "DETAIL"]
    assert out[-1] == sentence(judged(facts))
    assert [line[:2] for line in out[len(Link) + 1 : -1]] == ["→ "] * code
    assert cli.main(["doctor", "-o", "json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["brokenLink"] == ("nodeReady" if code else None)
    assert [one["name"] for one in found["links"]] == [*Link]
    assert cli.main(["doctor", "-o", "yaml"]) == code
    assert capsys.readouterr().out.startswith(f"brokenLink: {'nodeReady' if code else 'null'}\n")


def test_an_ignored_link_has_no_effect(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """It is not shown either; an unknown name is refused."""

    async def read(_options: object) -> Snapshot:
        return healthy(leases={})

    monkeypatch.setattr(command, "_read", read)
    assert cli.main(["doctor", "--ignore=nodeReady"]) == 0
    out = capsys.readouterr().out
    assert "Every link holds." in out
    assert "leases fresh" not in out
    with pytest.raises(SystemExit, match="2"):
        cli.main(["doctor", "--ignore=nodesReady"])
    assert "nodeReady" in capsys.readouterr().err


def test_quiet_prints_only_what_is_not_ok(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A line each, because Helm shows the log of ``helm test`` as one line."""
    for facts, expected in ((healthy(), 1), (healthy(leases={}), 2)):

        async def read(_options: object, found: Snapshot = facts) -> Snapshot:
            return found

        monkeypatch.setattr(command, "_read", read)
        cli.main(["doctor", "--quiet"])
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == expected
        assert not any(" ok: " in line or "skipped" in line for line in lines)
    assert lines[0].startswith("virtual nodes Ready, leases fresh: broken: Node vn: it has no Lease")
    assert " -> " in lines[0]


async def test_an_unusable_lower_kubeconfig_is_a_broken_link(person: Person):
    """For example with a failing credential plugin; the other clusters are still checked."""
    answers = {"/version": lambda _request: reply({"gitVersion": "v1.34.1"})}
    code, out, err = await person.types(
        "doctor", "--client-kubeconfig=/nonexistent", "-o=json", answers=answers
    )
    links = {one["name"]: one for one in json.loads(out)["links"]}
    assert (code, err) == (1, "")
    assert links["upperApi"]["state"] == "ok"
    assert links["lowerApi"]["detail"] == "kubeconfig /nonexistent: no such file"


async def test_refused_upper_credentials_are_reported_as_by_every_command(person: Person):
    """With the kubeconfig and its context."""
    answers = {"/version": lambda _request: failure(401, "Unauthorized", "Unauthorized")}
    code, out, err = await person.types("doctor", "-o=json", answers=answers)
    (link,) = [one for one in json.loads(out)["links"] if one["name"] == "upperApi"]
    assert (code, err, link["next"]) == (1, "", "renew them")
    assert "context prod) does not accept the kubeconfig's credentials (401)" in link["detail"]


def test_a_missing_kubeconfig_is_a_usage_error(capsys: pytest.CaptureFixture[str]):
    """Exit code 2, and one line."""
    assert cli.main(["doctor", "--kubeconfig", "/nonexistent"]) == 2
    assert "/nonexistent" in capsys.readouterr().err
