"""The extender's paths: what is served to whom, and what has to be asked for."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from multi_scheduler import flags
from multi_scheduler.extender import NotReadyError
from multi_scheduler.server import ExtenderServer

BINDING = {"PodName": "web", "PodNamespace": "shop", "PodUID": "u-1", "Node": "vn-a"}


class Binder:
    """An extender that notes what it was told to bind."""

    def __init__(self) -> None:
        self.bound: list[tuple[str, ...]] = []

    async def bind(self, *what: str) -> str:
        self.bound.append(what)
        return ""


@contextlib.asynccontextmanager
async def serving(extender: Any, *, bind: bool) -> AsyncIterator[str]:
    """A running server; yields its URL."""
    server = ExtenderServer("127.0.0.1", 0, tls=None, extender=extender, serve_bind=bind)
    await server.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.stop()


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A configuration file with one cluster."""
    text = {
        "apiVersion": "virtual-node.io/v1alpha1",
        "kind": "MultiSchedulerConfiguration",
        "clusters": [{"name": "a", "kubeconfig": "a.yaml"}],
    }
    file = tmp_path / "multi-scheduler.yaml"
    file.write_text(json.dumps(text), encoding="utf-8")
    return f"--config={file}"


async def test_nobody_binds_pods_unless_that_was_asked_for():
    """The path is not there: 404, and nothing is bound."""
    extender = Binder()
    async with serving(extender, bind=False) as url, aiohttp.ClientSession() as session:
        async with session.post(f"{url}/bind", json=BINDING) as answer:
            assert answer.status == 404
        async with session.post(f"{url}/filter", data=b"") as answer:
            assert answer.status == 200  # with the error in it, as kube-scheduler reads it
    assert extender.bound == []


async def test_an_extender_that_knows_nothing_yet_says_so():
    """As kube-scheduler reads it: the pod is tried again, with this in its event."""

    class Ignorant(Binder):
        async def filter(self, _asked: Any) -> None:
            raise NotReadyError("the upper cluster's nodes have not been read yet")

        async def preempt(self, *_: Any) -> None:
            raise NotReadyError("the upper cluster's nodes have not been read yet")

    pod: dict[str, Any] = {"metadata": {}, "spec": {}}
    async with serving(Ignorant(), bind=False) as url, aiohttp.ClientSession() as session:
        async with session.post(f"{url}/filter", json={"Pod": pod, "NodeNames": ["a"]}) as answer:
            assert answer.status == 200
            assert "not been read" in (await answer.json(content_type=None))["Error"]
        async with session.post(f"{url}/preempt", json={"Pod": pod}) as answer:
            assert answer.status == 503


async def test_with_bind_the_extender_binds():
    """A scheduler with bindVerb is served."""
    extender = Binder()
    async with (
        serving(extender, bind=True) as url,
        aiohttp.ClientSession() as session,
        session.post(f"{url}/bind", json=BINDING) as answer,
    ):
        assert (answer.status, await answer.json(content_type=None)) == (200, {"Error": ""})
    assert extender.bound == [("shop", "web", "u-1", "vn-a")]


@pytest.mark.parametrize(
    ("arguments", "expected"), [([], False), (["--bind"], True), (["--bind=true"], True), (["--bind=false"], False)]
)  # fmt: skip
def test_binding_is_off_unless_the_flag_says_so(config, arguments, expected):
    """The flag reads as Go's booleans do."""
    assert flags.parse([config, *arguments]).bind is expected


def test_the_chart_gives_the_flag_along_with_the_right_and_the_verb():
    """One value turns on all three: the route, the RBAC rule and the scheduler's bindVerb."""
    folder = Path(__file__).resolve().parents[3] / "charts" / "virtual-node" / "templates" / "multi-scheduler"
    deployment = (folder / "deployment.yaml").read_text(encoding="utf-8")
    assert "{{- if $values.bind }}\n            - --bind\n" in deployment
    assert "bindVerb: bind" in (folder / "_helpers.tpl").read_text(encoding="utf-8")
    assert '$sets = append $sets "bind"' in (folder / "rbac.yaml").read_text(encoding="utf-8")
