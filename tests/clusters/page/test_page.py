"""The web page, in a real browser: running and waiting pods, with reasons, updated live."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from hack.chromium import page
from hack.sandbox import Cluster, Sandbox
from tests.clusters.virtual_nodes import SIMULATED, pod
from tests.waiting import create, eventually, get, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]


async def test_the_page_follows_changes(sandbox: Sandbox, upper: Cluster, namespace, web_address, tmp_path):
    """Clusters and pods are shown at once, a waiting pod has a reason, a new pod appears without a reload."""
    await create(upper, namespace, pod("runs", "sleep 3600", node=SIMULATED))
    waits = pod("waits", "sleep 3600", node=SIMULATED)
    waits["spec"]["containers"][0]["envFrom"] = [{"configMapRef": {"name": "not-there"}}]
    await create(upper, namespace, waits)
    await ready(upper, namespace, "runs")
    async with page() as browser:
        await browser.open(f"http://{web_address}/")
        await browser.wait_for("document.querySelectorAll('#clusters .card').length === 2")
        await browser.wait_for("document.querySelector('#connection').textContent === 'live'")
        await browser.wait_for("document.querySelector('#pods').innerText.includes('not-there')")
        for word in ("vn-lower1", "vn-lower2", "Ready", "cpu", "memory", "pods"):
            await browser.wait_for(f"document.querySelector('#clusters').innerText.includes('{word}')")
        await browser.evaluate(
            f"(() => {{ const box = document.querySelector('#search'); box.value = '{namespace}';"
            " box.dispatchEvent(new Event('input')) })()"
        )
        await browser.wait_for("document.querySelectorAll('#pods > li').length === 2")
        await browser.wait_for(f"location.search.includes('{namespace}')")
        await create(upper, namespace, pod("later", "sleep 3600", node=SIMULATED))
        await browser.wait_for("document.querySelector('#pods').innerText.includes('later')")
        await browser.screenshot(tmp_path / "page.png", width=1200, height=900)
        await browser.screenshot(tmp_path / "dark.png", width=400, height=900, dark=True)
        assert await browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        lower = await get(sandbox.lower[1], namespace, "pod", "runs")
        await browser.open(f"http://{web_address}/?pod={namespace}/runs")
        place = json.dumps(lower["spec"]["nodeName"])
        await browser.wait_for(
            f"document.querySelector('#detail .sides')?.innerText.includes({place}) === true"
        )
        await create(upper, namespace, _scored(namespace, await get(upper, namespace, "pod", "runs")))
        await browser.wait_for(
            "document.querySelector('#detail').innerText.includes('vn-lower2 87, vn-lower1 40')"
        )
        await browser.open(f"http://{web_address}/?detail=lower2")
        await browser.wait_for(f"document.querySelector('#detail').innerText.includes({place})")
        await browser.wait_for(
            "document.querySelector('#detail').innerText.includes('kubelet API of vn-lower2')"
        )
        await browser.wait_for(
            "document.querySelector('#detail').innerText.includes('serving certificate of the API server')"
        )
        assert browser.console == []
    assert (tmp_path / "page.png").stat().st_size > 10_000


def _scored(namespace: str, upper_pod: dict[str, Any]) -> dict[str, Any]:
    """Record an Event as the multi-scheduler does on a bound pod; test_story covers the multi-scheduler itself."""
    involved = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": "runs"}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "runs.scored", "namespace": namespace},
        "involvedObject": {**involved, "uid": upper_pod["metadata"]["uid"]},
        "type": "Normal",
        "reason": "NodeScored",
        "message": "Bound to vn-lower2. Agent fit: vn-lower2 87, vn-lower1 40 (weight 1)",
        "source": {"component": "virtual-node-multi-scheduler"},
    }


async def test_the_page_is_read_only_and_same_origin(sandbox: Sandbox, web_address):
    """No method but GET, no other origin, no inline script."""
    async with aiohttp.ClientSession() as session:
        async with session.post(f"http://{web_address}/api/state") as answer:
            assert answer.status == 405
        async with session.get(f"http://{web_address}/") as answer:
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert "<script>" not in await answer.text()
        async with session.get(f"http://{web_address}/api/state?search=%3Cscript%3E") as answer:
            assert answer.content_type == "application/json"
            assert (await answer.json())["pods"]["groups"] == []


async def test_a_lost_cluster_is_the_headline(
    sandbox: Sandbox, upper: Cluster, namespace, web_address, tmp_path
):
    """Its pods are not shown as running, and a pod without a node is shown; both end with the outage."""
    await create(upper, namespace, pod("runs", "sleep 3600", node=SIMULATED))
    await ready(upper, namespace, "runs")
    lower = sandbox.lower[1]
    async with page() as browser:
        await browser.open(f"http://{web_address}/?search={namespace}")
        await browser.wait_for("document.querySelector('#pods').innerText.includes('running')")
        await lower.apiserver.kill()
        try:
            await browser.wait_for("document.querySelector('#faults').innerText.includes('Cluster lower2')")
            await browser.wait_for("document.querySelector('#clusters').innerText.includes('not reachable')")
            await browser.wait_for("document.querySelector('#clusters').innerText.includes('Last heard')")
            await browser.wait_for("document.querySelector('#pods').innerText.includes('1 not seen')")
            assert await browser.evaluate("document.title.startsWith('(')")

            async def closed() -> bool:
                node = await get(upper, "", "node", SIMULATED)
                return "node.kubernetes.io/not-ready" in str(node["spec"].get("taints"))

            await eventually(closed, what="the upper cluster keeps pods off the virtual node")
            waits = pod("waits", "sleep 3600", node=SIMULATED)
            await create(upper, namespace, waits)
            await browser.wait_for("document.querySelector('#pods').innerText.includes('no node')")
            await browser.screenshot(tmp_path / "lost.png", width=1280, height=1000)
        finally:
            await lower.restore()
        await browser.wait_for(
            "document.querySelector('#clusters').innerText.includes('not reachable') === false"
        )
        await browser.wait_for(
            "document.querySelector('#pods').innerText.includes('2 running') || document.querySelectorAll('#pods .chip[data-state=good]').length === 2"
        )
        assert browser.console == []
