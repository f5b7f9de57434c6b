"""The page in a real browser, with simulated clusters: every width, light and dark, few pods and many."""

from __future__ import annotations

import asyncio
import importlib.resources
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from hack import chromium
from hack.page.__main__ import served, troubled
from hack.page.scene import Scene
from hack.sandbox.errors import SandboxError
from tests.unit.virtual_node.examine.health_objects import condition, swarm

pytestmark = [pytest.mark.timeout(600)]
_POD = "shop/checkout-7d4b9c6f5-8"
_VIEWS = (
    "",
    "?open=shop/Deployment/checkout",
    f"?pod={_POD}",
    "?detail=tokyo",
    "?pod=shop/none",
    "?detail=none",
)
_LIVE = "document.querySelector('#connection').textContent === 'live' && document.querySelector('#verdict').textContent !== 'Connecting …'"
_ROWS = "document.querySelectorAll('#pods > li').length"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def tab() -> AsyncIterator[chromium.Page]:
    """A browser."""
    async with chromium.page() as found:
        yield found


@asynccontextmanager
async def _shown(tab: chromium.Page, scene: Scene, query: str = "") -> AsyncIterator[str]:
    """Open the page of a scene; no error may be on its console at the end."""
    tab.console.clear()
    async with served(scene) as url:
        await tab.open(url + query)
        await tab.wait_for(_LIVE)
        yield url
        await tab.call("Page.navigate", url="about:blank")
    assert tab.console == []


async def _violations(tab: chromium.Page) -> Any:
    axe = importlib.resources.files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    await tab.evaluate(f"{axe}; 0")
    found = await tab.evaluate(
        "axe.run(document, {resultTypes: ['violations']}).then(r => JSON.stringify({rules: r.passes.length, "
        "found: r.violations.map(v => [v.id, v.nodes.slice(0, 3).map(n => n.html)])}))"
    )
    result = json.loads(found)
    assert result["rules"] > 15
    return result["found"]


@pytest.mark.parametrize("query", _VIEWS)
async def test_every_view_fits_and_is_accessible(tab: chromium.Page, tmp_path: Path, query: str) -> None:
    """Nothing is wider than the screen, and axe-core finds nothing, wide and narrow, light and dark."""
    async with _shown(tab, troubled(tmp_path), query):
        await tab.wait_for(
            "!document.querySelector('#overview').hidden || !!document.querySelector('#detail h2')"
        )
        await tab.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
        for width, dark in ((1280, False), (1280, True), (400, False), (400, True)):
            await tab.resize(width, 900, dark=dark)
            await asyncio.sleep(0.6)
            assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), (width, dark)
            assert await _violations(tab) == [], (width, dark)


async def test_a_standby_refers_to_the_leader(tab: chromium.Page) -> None:
    """It shows no empty list, but the command that reaches the leader's page."""
    scene = Scene(0)
    scene.leader = "virtual-node-7c9d"
    async with _shown(tab, scene):
        command = "kubectl --namespace virtual-node-system port-forward pod/virtual-node-7c9d 8090"
        await tab.wait_for(f"document.querySelector('#leader code')?.textContent === {json.dumps(command)}")
        assert await tab.evaluate("document.querySelector('#pods-section').hidden")
        assert await _violations(tab) == []


async def test_a_replica_refers_to_the_replicas_that_run_other_clusters(tab: chromium.Page) -> None:
    """With mode Sharded it shows its own clusters, and for each other replica a command and the names. A worker has its own port."""
    scene = Scene(3, has_trouble=False)
    scene.elsewhere = {"osaka": "vn-1", "lagos": "vn-1", "oslo": "vn-2.2"}
    async with _shown(tab, scene):
        await tab.wait_for("document.querySelectorAll('#leader code').length === 2")
        text = await tab.evaluate("document.querySelector('#leader').innerText")
        assert "vn-1 runs lagos, osaka" in text
        assert "port-forward pod/vn-2 8091" in text
        assert not await tab.evaluate("document.querySelector('#pods-section').hidden")
        assert await _violations(tab) == []


async def test_swarms_have_a_table(tab: chromium.Page) -> None:
    """It is absent without Swarms, follows changes, fits, and axe-core finds nothing."""
    scene = Scene(3, has_trouble=False)
    async with _shown(tab, scene):
        await tab.wait_for("document.querySelector('#swarms-section').hidden")
        failing = condition("Degraded", "True", "JobsFailing", "1 job cannot be started")
        scene.swarms += [swarm("streams", condition("Converged", "True")), swarm("w" * 63, failing)]
        await tab.wait_for("document.querySelectorAll('#swarms > tr').length === 2")
        await tab.wait_for("document.querySelector('#swarms > tr').innerText.includes('degraded')")
        await tab.wait_for("document.querySelector('#faults').innerText.includes('Swarm shop/www')")
        for width in (1280, 400):
            await tab.resize(width, 900)
            assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
            assert await _violations(tab) == [], width
        scene.swarms.clear()
        await tab.wait_for("document.querySelector('#swarms-section').hidden")


async def test_faults_come_first(tab: chromium.Page, tmp_path: Path) -> None:
    """The rejected configuration and the lost cluster are in the headline and in the tab's title; repaired, both disappear."""
    scene = Scene(3, has_trouble=False)
    async with _shown(tab, scene):
        await tab.wait_for("document.querySelector('#verdict').textContent === 'No fault is seen.'")
        scene.lose("frankfurt")
        scene.rejected = "config.yaml: lables"
        await tab.wait_for("document.querySelector('#verdict').textContent === '2 errors'")
        text = "document.querySelector('#faults').innerText"
        await tab.wait_for(f"{text}.includes('Configuration') && {text}.includes('frankfurt')")
        await tab.wait_for(f"/silent for 3 min; running pods move in 1[01][0-9] s/.test({text})")
        shown = await tab.evaluate(text)
        await tab.wait_for(f"{text} !== {json.dumps(shown)}")  # it counts down by itself
        await tab.wait_for("document.title.startsWith('(2)')")
        await tab.wait_for("document.querySelector('#clusters').innerText.includes('Last heard 3 min ago')")
        await tab.wait_for("document.querySelector('#states').innerText.includes('not seen 1')")
        scene.rejected = ""
        await tab.wait_for("document.querySelector('#verdict').textContent === '1 error'")


async def test_filters_are_kept_in_the_address(tab: chromium.Page) -> None:
    """A link leads to the same pods, Back leads out of a pod's view, and the keyboard is enough."""
    async with _shown(tab, Scene(60), "?namespace=payments&status=trouble") as url:
        await tab.wait_for(f"{_ROWS} === 1")
        await tab.evaluate("document.querySelector('#states button').click()")
        await tab.wait_for(f"{_ROWS} === 2 && location.search === '?namespace=payments'")
        await tab.evaluate("document.querySelector('#pods .toggle').focus()")
        await tab.press("Enter")
        await tab.wait_for("document.querySelectorAll('.members li').length > 3")
        await tab.wait_for("document.activeElement.classList.contains('toggle')")
        await tab.evaluate("document.querySelector('.members a').focus()")
        await tab.press("Enter")
        await tab.wait_for(
            "document.activeElement.tagName === 'H2' && !document.querySelector('#detail').hidden"
        )
        await tab.evaluate("history.back()")
        await tab.wait_for("document.querySelectorAll('.members li').length > 3")
        await tab.open(f"{url}?cluster=tokyo")
        await tab.wait_for(
            "document.querySelector('#cluster').value === 'tokyo' && document.querySelector('#shown').textContent.includes(' of ')"
        )


async def test_a_screen_reader_announces_the_result_of_a_filter(tab: chromium.Page) -> None:
    """But not every change of a busy cluster."""
    scene = Scene(60)
    async with _shown(tab, scene):
        await tab.wait_for(f"{_ROWS} > 5")
        pod = next(pod for pod in scene.pods() if pod.name.startswith("web-")).to_dict()
        pod["status"] = {"phase": "Failed", "reason": "Evicted"}
        scene.put("tokyo", pod)
        await tab.wait_for("document.querySelector('#states').innerText.includes('failed 1')")
        assert await tab.evaluate("document.querySelector('#announced').textContent") == ""
        await tab.evaluate("document.querySelector('#states button[data-status=running]').click()")
        await tab.wait_for("document.querySelector('#announced').textContent.endsWith(' of 61 pods')")


async def test_the_keyboard_reaches_everything(tab: chromium.Page, tmp_path: Path) -> None:
    """Tab goes through links, causes, filters and workloads in the order of the page."""
    async with _shown(tab, troubled(tmp_path)):
        await tab.wait_for(f"{_ROWS} > 5")
        seen = []
        for _ in range(60):
            await tab.press("Tab")
            seen.append(await tab.evaluate("document.activeElement.closest('[id]')?.id || ''"))
        order = ["faults", "clusters", "search", "cluster", "namespace", "states", "pods"]
        assert [one for one in dict.fromkeys(seen) if one in order] == order


async def test_nothing_in_the_data_becomes_markup(tab: chromium.Page) -> None:
    """Tenants control names, messages and annotations."""
    markup = "<img src=x onerror=\"document.title='broken'\"><script>1</script>"
    scene = Scene(3)
    pod = next(scene.pods()).to_dict()
    pod["status"] = {"phase": "Pending", "reason": markup, "message": markup}
    pod["metadata"]["annotations"] = {"clusterSelector": markup}
    scene.put("tokyo", pod)
    scene.rejected = markup
    for query in ("", f"?pod=shop/{pod['metadata']['name']}"):
        async with _shown(tab, scene, query):
            await tab.wait_for("document.body.innerText.includes('onerror')")
            assert await tab.evaluate("document.querySelectorAll('img, body script').length") == 0
            assert await tab.evaluate("document.title") != "broken"


async def test_an_update_keeps_open_focused_and_selected_elements(tab: chromium.Page) -> None:
    """While other pods change."""
    scene = Scene(60)
    async with _shown(tab, scene):
        await tab.wait_for(f"{_ROWS} > 5")
        await tab.evaluate(
            "window.kept = [...document.querySelectorAll('#pods > li')].find(one => one.innerText.includes('gateway'));"
            "kept.querySelector('details').open = true; kept.querySelector('.toggle').focus()"
        )
        pod = next(pod for pod in scene.pods() if pod.name.startswith("web-")).to_dict()
        pod["status"] = {"phase": "Failed", "reason": "Evicted", "message": "the disk is full"}
        scene.put("tokyo", pod)
        await tab.wait_for("document.querySelector('#pods').innerText.includes('Evicted')")
        assert await tab.evaluate(
            "kept.isConnected && kept.querySelector('details').open && kept.contains(document.activeElement)"
        )


async def test_the_longest_names_and_messages_fit(tab: chromium.Page, tmp_path: Path) -> None:
    """Of a pod and of a stopped cluster, without a space to break at; the cluster's view gives the reason."""
    scene = troubled(tmp_path)
    pod = next(scene.pods()).to_dict()
    owner = {"kind": "Owner" * 12, "name": "w" * 253, "controller": True}
    pod["metadata"] |= {"namespace": "n" * 63, "name": "x" * 253, "uid": "long", "ownerReferences": [owner]}
    pod["status"] = {"phase": "Pending", "reason": "R" * 120, "message": "m" * 900}
    scene.put("tokyo", pod)
    scene.failures["z" * 63] = "e" * 800
    for query in ("?search=xxx", f"?pod={'n' * 63}/{'x' * 253}", f"?detail={'z' * 63}"):
        async with _shown(tab, scene, query):
            is_detail = query != "?search=xxx"
            await tab.wait_for("!!document.querySelector('#detail h2')" if is_detail else f"{_ROWS} === 1")
            assert (
                await tab.evaluate("document.body.innerText.includes('e'.repeat(800))")
                or "detail" not in query
            )
            for width in (1280, 400):
                await tab.resize(width, 900)
                assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
                    query,
                    width,
                )
            assert await _violations(tab) == []


async def test_ten_thousand_pods(tab: chromium.Page, tmp_path: Path) -> None:
    """The list is paged and shows more on demand; a filter shows its pods."""
    async with _shown(tab, troubled(tmp_path, 10_000)):
        await tab.wait_for(f"{_ROWS} === 40")
        assert await tab.evaluate("document.querySelectorAll('*').length") < 3000
        await tab.evaluate("document.querySelector('#more').click()")
        await tab.wait_for(f"{_ROWS} === 80")
        await tab.evaluate(
            "(() => { const box = document.querySelector('#search'); box.value = 'gateway-3'; box.dispatchEvent(new Event('input')) })()"
        )
        await tab.wait_for(f"{_ROWS} > 0 && {_ROWS} < 30")
        await tab.evaluate("document.querySelector('#pods .toggle').click()")
        await tab.wait_for("document.querySelectorAll('.members li').length > 10")


@asynccontextmanager
async def _without_stall() -> AsyncIterator[None]:
    """Check the CPU time between turns of a task; a few long ones are the garbage collector's."""
    taken = []

    async def turns() -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0.001)
            taken.append(time.thread_time() - last)
            last = time.thread_time()

    task = asyncio.create_task(turns())
    yield
    task.cancel()
    assert sorted(taken)[-6] < 0.05


async def test_ten_thousand_pods_that_change_are_at_most_50_kilobytes_a_second(tmp_path: Path) -> None:
    """For one browser, while hundreds of pods change every second; the process' loop does not stall."""
    scene = troubled(tmp_path, 10_000)
    pods = [pod.to_dict() for pod in scene.pods()][:2000]
    loop = asyncio.get_running_loop()
    async with (
        served(scene) as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}api/stream") as answer,
        _without_stall(),
    ):
        await answer.content.readuntil(b"\n\n")
        begun, received, turn = loop.time(), 0, 0
        while loop.time() - begun < 10:
            for pod in pods[turn % 10 :: 10]:
                pod["status"] = {"phase": "Pending", "reason": f"Turn{turn}", "message": "x" * 300}
                scene.put("tokyo", pod)
                await asyncio.sleep(0)
            turn += 1
            try:
                async with asyncio.timeout(1):
                    received += len(await answer.content.readuntil(b"\n\n"))
            except TimeoutError:
                continue
        assert received
        assert received / (loop.time() - begun) <= 50_000


async def test_a_page_that_lost_its_server_shows_since_when(tab: chromium.Page) -> None:
    """Its data is then old; when the server is back, the page is live again."""
    scene = Scene(3)
    async with served(scene) as url:
        await tab.open(url)
        await tab.wait_for(_LIVE)
    await tab.wait_for(
        "document.querySelector('#connection').textContent.startsWith('connection lost; as of ')"
    )
    assert await tab.evaluate(f"{_ROWS} > 0")


@pytest.mark.parametrize(
    ("crash", "why"), [("Page.crash", "the tab crashed"), ("Browser.crash", "killed by SIG")]
)
async def test_a_browser_that_ends_is_an_error_with_its_reason(crash: str, why: str) -> None:
    """It does not wait for a response that never comes."""
    async with chromium.page() as browser:
        with pytest.raises(SandboxError, match=why):
            await browser.call(crash)
