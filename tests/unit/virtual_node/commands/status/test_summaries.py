"""``status`` shows the same from the answers of processes as from lists of the pods."""

from __future__ import annotations

import asyncio
import random
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
import pytest
from aiohttp import web

from clusterset.model import names
from tests.unit.controller_runtime.loopback import failure, reply
from tests.unit.virtual_node.commands.diagnose.healthy_pods import healthy_pod
from tests.unit.virtual_node.commands.diagnose.test_diagnose_corpus import CASES, facts_of
from tests.unit.virtual_node.commands.doctor_facts import node
from tests.unit.virtual_node.commands.run_command import LEASES, NODES, PODS, SHOP, Person
from tests.unit.virtual_node.commands.status.test_command import _renewed
from virtual_node.commands.status import rows
from virtual_node.node_summary import PATH, Summaries, summarize, summary_of

Answers = dict[str, Callable[[web.Request], web.StreamResponse]]
_AGES = re.compile(r'"(heartbeatSeconds|ageSeconds)": ?[\d.]+|\s+\d+\w+ ago\s+|HEARTBEAT\s+')


def _lease(name: str, replica: str) -> dict[str, Any]:
    found = _renewed(name)
    found["metadata"]["annotations"] = {names.ANNOTATION_REPLICA: replica}
    return found


def _state() -> dict[str, list[dict[str, Any]]]:
    """Return healthy and faulty pods on three virtual nodes of two processes."""
    chance = random.Random(2)
    pods: list[Mapping[str, Any]] = [healthy_pod(chance, number)[0] for number in range(60)]
    pods += [facts_of(case).pod for case in CASES]
    placed = []
    for number, one in enumerate(pods):
        metadata = {**one["metadata"], "namespace": "shop", "name": f"p{number}", "uid": f"u{number}"}
        # Nothing on vn-b may be a fault.
        may_fail = summary_of(
            {**one, "metadata": metadata, "spec": {**one["spec"], "nodeName": "x"}}
        ).findings
        place = ("vn-a", "vn-c")[number % 2] if may_fail else ("vn-a", "vn-b", "vn-c")[number % 3]
        placed.append({**one, "metadata": metadata, "spec": {**one["spec"], "nodeName": place}})
    return {
        NODES: [node("vn-a"), node("vn-b"), node("vn-c")],
        LEASES: [_lease("vn-a", "one"), _lease("vn-b", "one"), _lease("vn-c", "two")],
        SHOP: placed,
    }


def _answer(objects: Mapping[str, list[dict[str, Any]]], asked: str, *held: str) -> web.Response:
    """Return the answer of a process that runs some virtual nodes."""
    found = {}
    for name in held:
        found[name] = summarize(summary_of(one) for one in objects[SHOP] if one["spec"]["nodeName"] == name)
        if name != asked:
            found[name] = found[name].for_others()
    return web.Response(body=msgspec.json.encode(Summaries(found)), content_type="application/json")


def _path(name: str) -> str:
    return f"{NODES}/{name}/proxy{PATH}"


def _answering(objects: Mapping[str, list[dict[str, Any]]]) -> Answers:
    held = {"vn-a": ("vn-a", "vn-b"), "vn-b": ("vn-a", "vn-b"), "vn-c": ("vn-c",)}
    return {
        _path(name): lambda _request, name=name: _answer(objects, name, *held[name])  # type: ignore[misc]
        for name in held
    }


def _requests(person: Person) -> list[str]:
    assert person.server is not None
    return [
        one.path + ("?" + one.query["fieldSelector"] if "fieldSelector" in one.query else "")
        for one in person.server.asked
    ]


def _ageless(shown: tuple[int, str, str]) -> tuple[int, str, str]:
    """Return exit code, output and errors without the time of the last heartbeat, which differs between two runs."""
    code, out, err = shown
    return code, _AGES.sub("", out), err


def _lists(person: Person) -> list[str]:
    return [path for path in _requests(person) if path.startswith(f"{PODS}?spec.nodeName=vn")]


@pytest.mark.parametrize("words", [(), ("-o", "wide"), ("-o", "json"), ("vn-a",), ("vn-b", "-o", "json")])
async def test_answers_show_what_lists_show(person: Person, words: tuple[str, ...]):
    """The same table, faults, data and exit code, without listing pods."""
    objects = _state()
    listed = await person.types("status", *words, objects=objects)
    assert _lists(person)
    answered = await person.types("status", *words, objects=objects, answers=_answering(objects))
    assert _lists(person) == []
    assert _ageless(answered) == _ageless(listed)
    assert listed[0] == 0
    assert "Pod shop/p" in "".join(listed[1:]) or words == ("vn-b", "-o", "json")


async def test_each_process_is_asked_once(person: Person):
    """vn-b has no faulty pods, so the answer of vn-a is enough."""
    objects = _state()
    await person.types("status", objects=objects, answers=_answering(objects))
    asked = [path for path in _requests(person) if "/proxy/" in path]
    assert sorted(asked) == [_path("vn-a"), _path("vn-c")]


async def test_nodes_with_faulty_pods_are_asked_themselves(person: Person):
    """A process names pods only to who may read their virtual node."""
    objects = _state()
    objects[LEASES] = [_lease("vn-b", "one"), _lease("vn-c", "one"), _lease("vn-a", "one")]
    held = ("vn-a", "vn-b", "vn-c")
    answers: Answers = {
        _path(name): lambda _request, name=name: _answer(objects, name, *held)  # type: ignore[misc]
        for name in held
    }
    listed = await person.types("status", objects=objects)
    assert _ageless(await person.types("status", objects=objects, answers=answers)) == _ageless(listed)
    assert [path for path in _requests(person) if "/proxy/" in path] == [_path("vn-a"), _path("vn-c")]


def _silent(_request: web.Request) -> web.StreamResponse:
    return failure(503, "ServiceUnavailable", "dial tcp 10.0.0.9:10250: connect: connection refused")


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(None, id="earlier release"),
        pytest.param(_silent, id="silent"),
        pytest.param(lambda _request: web.Response(text="<html>"), id="another program"),
        pytest.param(
            lambda _request: reply({"nodes": {"vn-a": {"findings": [{"code": "New"}]}}}), id="later release"
        ),
        pytest.param(lambda _request: reply({"nodes": {}}), id="cache not complete"),
        pytest.param(lambda _request: web.Response(status=401), id="unauthorized"),
        pytest.param(
            lambda _request: web.Response(status=403, text="Forbidden (user=apiserver)"), id="kubelet refuses"
        ),
    ],
)
async def test_pods_are_listed_where_a_process_does_not_answer(
    person: Person, refusal: Callable[[web.Request], web.StreamResponse] | None
):
    """Only those of its virtual nodes."""
    objects = _state()
    answers = _answering(objects)
    for name in ("vn-a", "vn-b"):
        del answers[_path(name)]
        if refusal is not None:
            answers[_path(name)] = refusal
    listed = await person.types("status", objects=objects)
    assert _ageless(await person.types("status", objects=objects, answers=answers)) == _ageless(listed)
    assert sorted(_lists(person)) == [f"{PODS}?spec.nodeName=vn-a", f"{PODS}?spec.nodeName=vn-b"]


async def test_the_other_nodes_of_a_silent_process_are_not_asked(person: Person):
    """The API server may wait for seconds each time."""
    objects = _state()
    await person.types("status", objects=objects, answers={**_answering(objects), _path("vn-a"): _silent})
    assert [path for path in _requests(person) if "/proxy/" in path] == [_path("vn-a"), _path("vn-c")]


async def test_a_refused_caller_lists_pods_and_gets_one_note(person: Person):
    """nodes/proxy is a right of administrators. The right is named as for the lag."""
    objects = _state()
    code, out, err = await person.types(
        "status", objects=objects, answers=_answering(objects), forbidden=(f"{NODES}/*/proxy/*",)
    )
    assert (code, len(_lists(person))) == (0, 3)
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["vn-a", "vn-b", "vn-c"]
    assert err.count("kubectl auth can-i get nodes --subresource=proxy") == 1
    assert not [path for path in _requests(person) if path.endswith("/metrics")]


async def test_an_answer_needs_no_right_to_list_pods(person: Person):
    """The numbers are known; that pods without a node are not is in the note."""
    objects = _state()
    code, out, err = await person.types(
        "status", objects=objects, answers=_answering(objects), forbidden=(PODS,)
    )
    headings, *lines = (line.split() for line in out.splitlines())
    assert (code, "?" in {line[headings.index("PODS")] for line in lines}) == (0, False)
    assert "kubectl auth can-i list pods --all-namespaces" in err


async def test_the_lag_is_that_of_the_answer(person: Person):
    """Metrics are not requested."""
    objects = _state()

    def answer(_request: web.Request) -> web.StreamResponse:
        found = msgspec.json.decode(_answer(objects, "vn-c", "vn-c").body)  # type: ignore[arg-type]
        found["nodes"]["vn-c"]["lag"] = {"up": {"p50": 0.025, "p99": 0.5}}
        return reply(found)

    _, out, _ = await person.types("status", "vn-c", objects=objects, answers={_path("vn-c"): answer})
    assert "≤25ms (p99 ≤500ms)" in out


async def test_a_process_that_never_answers_delays_the_command_for_a_limited_time(
    person: Person, monkeypatch: pytest.MonkeyPatch
):
    """Then its pods are listed."""
    monkeypatch.setattr(rows, "_TIMEOUT", 0.2)
    objects = _state()
    listed = await person.types("status", "vn-c", objects=objects)

    async def never(_request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        raise AssertionError

    answers: Any = {_path("vn-c"): never}
    assert _ageless(await person.types("status", "vn-c", objects=objects, answers=answers)) == _ageless(
        listed
    )


async def test_next_steps_are_commands_as_the_user_types_them(
    person: Person, monkeypatch: pytest.MonkeyPatch
):
    """A process does not know that the caller uses kubectl's plugin."""
    objects = _state()
    answers = _answering(objects)
    summaries_of = {name: answer(cast("Any", None)) for name, answer in answers.items()}
    monkeypatch.setattr(sys, "argv", ["kubectl-virtual_node"])
    listed = await person.types("status", objects=objects)
    assert "kubectl virtual-node diagnose pod" in listed[2]

    def fixed(request: web.Request) -> web.StreamResponse:
        return web.Response(
            body=cast("Any", summaries_of[request.path]).body, content_type="application/json"
        )

    assert _ageless(
        await person.types("status", objects=objects, answers=dict.fromkeys(answers, fixed))
    ) == _ageless(listed)
