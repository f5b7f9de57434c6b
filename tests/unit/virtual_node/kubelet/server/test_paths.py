"""Every path of a kubelet's server responds as a kubelet's, except those that a virtual node does not have."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from tests.kubelet_paths import expected_of_virtual_node, matches
from tests.unit.virtual_node.kubelet.conftest import Serve
from virtual_node.kubelet.metrics import MetricsRoutes
from virtual_node.kubelet.series import NodeSeries
from virtual_node.metrics import pod_work

pytestmark = pytest.mark.asyncio


def _metrics() -> list[web.RouteDef]:
    lower: Any = None
    measures = MetricsRoutes(
        lower,
        node_name="vn",
        lower_nodes=list,
        pods=dict,
        cluster_id="upper",
        series=NodeSeries("vn", certificate_expires=lambda: None, work=pod_work()),
    )
    return measures.routes()


@pytest.mark.parametrize("wire", ["tcp"], indirect=True)
async def test_all_paths_and_methods_respond_as_those_of_a_kubelet(serve: Serve, wire: str) -> None:
    """Recorded from a real one. Paths that reach the lower cluster are compared on real clusters."""
    assert wire
    wrong = []
    async with serve(1, extra_routes=_metrics()) as node:
        for method, path, expected in expected_of_virtual_node():
            if path.startswith(("/containerLogs/NS/POD/main", "/run/")) and expected.status in {200, 500}:
                continue
            status, head, _ = await node.ask(
                path.replace("NS", "shop").replace("POD", "web-1"), method=method
            )
            headers = dict(line.split(": ", 1) for line in head.splitlines()[1:] if ": " in line)
            if not matches(expected, status, headers):
                wrong.append((method, path, expected, status, headers))
    assert wrong == []


@pytest.mark.parametrize(
    ("path", "code", "text"),
    [
        ("/healthz", 200, "ok"),
        ("/healthz/syncloop", 200, "ok"),
        ("/healthz?verbose", 200, "[+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n"),
        ("/nope", 404, "404 page not found\n"),
        ("/exec/shop/web-1", 404, "404: Page Not Found"),
        ("/logs/syslog", 405, "logs endpoint is disabled.\n"),
        ("/debug/pprof/heap", 405, "profiling endpoint is disabled.\n"),
        ("/debug/flags/v", 405, "flags endpoint is disabled.\n"),
        ("/run/shop/web-1/main", 405, "405: Method Not Allowed"),
    ],
)
@pytest.mark.parametrize("wire", ["tcp"], indirect=True)
async def test_the_text_is_a_kubelets(serve: Serve, wire: str, path: str, code: int, text: str) -> None:
    assert wire
    async with serve(1) as node:
        assert (await node.ask(path))[::2] == (code, text)


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/stats?a=b%26c", "/stats/?a=b%26c"),
        ("//evil.example/x", "/evil.example/x"),
        ("/%2fevil.example//x", "/evil.example/x"),
        ("/a//%0d%0aX-Header:1", "/a/%0D%0AX-Header:1"),
        ("/../../etc/", "/etc/"),
    ],
)
@pytest.mark.parametrize("wire", ["tcp"], indirect=True)
async def test_a_redirect_stays_on_the_server(serve: Serve, wire: str, path: str, location: str) -> None:
    """Its Location has one slash at the start, and no line break of the request."""
    assert wire
    async with serve(1) as node:
        status, head, _ = await node.ask(path)
        assert (status, f"\r\nLocation: {location}\r\n" in head + "\r\n") == (307, True), head
        assert "\r\nX-Header" not in head
