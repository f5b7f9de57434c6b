"""Commands take names and flags as kubectl does, so that scripts combine both."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp import web

from tests.unit.controller_runtime.loopback import reply, serve
from tests.unit.virtual_node.commands.doctor_facts import node
from tests.unit.virtual_node.commands.run_command import LEASES, NODES, PODS, Person, answer, kubeconfig
from virtual_node.commands import parsers

ALICE = {"Impersonate-User": "alice", "Impersonate-Group": "admins", "Impersonate-Uid": "7"}


async def test_the_names_that_status_prints_select_nodes_in_other_commands(person: Person):
    """``virtual-node cordon $(virtual-node status -o name)``."""
    patched = []

    async def served(request: web.Request) -> web.StreamResponse:
        if request.method == "PATCH":
            patched.append(request.path)
        return reply(node("vn"))

    objects = {NODES: [node("vn")], LEASES: []}
    _, name, _ = await person.types("status", "-o", "name", objects=objects)
    for words in (["status", "-o", "name"], ["cordon"], ["uncordon"]):
        code, out, err = await person.types(
            *words, name.strip(), objects=objects, answers={f"{NODES}/vn": served}
        )
        assert name.strip() in out, err
        assert code == 0 or words[0] == "status", err
    assert patched == [f"{NODES}/vn"] * 2


@pytest.mark.parametrize("text", ["vn", "node/vn", "nodes/vn", "no/vn", "Node/vn"])
def test_targets_have_the_forms_of_kubectl(text: str):
    assert parsers.drain().parse_args([text]).targets == ["vn"]
    assert parsers.status().parse_args([text]).names == ["vn"]


def test_names_of_other_kinds_stay_unknown_names():
    assert parsers.drain().parse_args(["pod/vn"]).targets == ["pod/vn"]


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["doctor"],
        ["diagnose", "node", "vn"],
        ["drain", "vn", "--timeout=100ms"],
        ["drain", "vn", "--dry-run"],
        ["cordon", "vn"],
        ["uncordon", "vn"],
        ["check", "--client-kubeconfig=missing.yaml", "--nodename=vn"],
        ["inspect", "--client-kubeconfig=missing.yaml", "--nodename=vn"],
        ["cleanup", "--no-clusters", "--dry-run"],
        ["lower-cluster", "join", "tokyo", "--client-kubeconfig={lower}", "--values={values}"],
        ["lower-cluster", "leave", "tokyo", "--client-kubeconfig={lower}", "--values={values}"],
        ["lower-cluster", "dns", "tokyo", "--client-kubeconfig={lower}"],
        ["lower-cluster", "register", "tokyo", "--client-kubeconfig={lower}"],
    ],
)
async def test_every_request_impersonates_the_user_of_the_flags(
    person: Person, tmp_path: Path, words: list[str]
):
    """Administrators often have few rights of their own, and act as another user with ``--as``."""
    flags = ["--as", "alice", "--as-group=admins", "--as-uid=7"]
    (tmp_path / "lower").mkdir()
    (tmp_path / "values.yaml").write_text("{}", encoding="utf-8")

    async def in_lower(request: web.Request) -> web.StreamResponse:
        return reply({"minor": "34"}) if request.path == "/version" else answer(request, {})

    async with serve(in_lower) as lower:
        file = kubeconfig(tmp_path / "lower", lower.url)
        words = [word.format(lower=file, values=tmp_path / "values.yaml") for word in words]
        await person.types(*words, *flags, objects={NODES: [node("vn")], LEASES: [], PODS: []})
    assert person.server is not None
    assert person.server.asked
    for request in person.server.asked:
        assert request.headers.items() >= ALICE.items(), request.path
    assert not any("Impersonate-User" in request.headers for request in lower.asked)


@pytest.mark.parametrize("action", ["join", "leave"])
async def test_helm_cannot_impersonate_a_uid(person: Person, action: str):
    """It is reported before anything is changed."""
    flags = ["--client-kubeconfig=missing.yaml", "--as=alice", "--as-uid=7"]
    code, _, err = await person.types("lower-cluster", action, "tokyo", *flags, objects={})
    assert code == 2
    assert err == "virtual-node: --as-uid: only with --values, because helm cannot impersonate a UID\n"


async def test_a_group_to_impersonate_needs_a_user(person: Person):
    code, _, err = await person.types("status", "--as-group=admins", objects={NODES: []})
    assert code == 2
    assert err.endswith("user.as: is missing; as-uid, as-groups and as-user-extra need a user\n")


@pytest.mark.parametrize(
    "words",
    [
        "vn --ignore-daemonsets=true --delete-emptydir-data=true --force=true --dry-run=client",
        "--ignore-daemonsets --dry-run=server vn",
    ],
)
def test_drain_takes_the_flags_of_scripts_for_kubectl(words: str):
    options = parsers.drain().parse_args(words.split())
    assert (options.targets, options.dry_run, options.ignore_daemonsets) == (["vn"], True, True)
