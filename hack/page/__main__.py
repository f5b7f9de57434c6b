"""``python -m hack.page``: make the documentation's screenshots of the page; with a directory, screenshots of every case."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from hack import chromium
from hack.page.scene import Scene
from hack.sandbox.errors import SandboxError
from virtual_node.web.server import WebServer

_DOCS = Path(__file__).parents[2] / "docs" / "operate"
_POD = "shop/checkout-7d4b9c6f5-8"
_READY = "document.querySelector('#connection').dataset.state === 'good' && !document.querySelector('#verdict').textContent.startsWith('Conn')"


@asynccontextmanager
async def served(scene: Scene) -> AsyncIterator[str]:
    """Serve a scene on loopback; yield the page's URL."""
    async with WebServer("127.0.0.1:0", overview=scene.overview()) as server:
        yield f"http://127.0.0.1:{server.port}/"


def troubled(directory: Path, pods: int = 60) -> Scene:
    """Return a scene with a lost cluster and a rejected configuration."""
    scene = Scene(pods, directory=directory)
    scene.lose("frankfurt")
    scene.rejected = "config.yaml: clusters[0].lables: unknown field; did you mean labels?"
    return scene


async def picture(
    tab: chromium.Page, url: str, file: Path, *, width: int, height: int, dark: bool = False
) -> None:
    """Save a screenshot of a page."""
    await tab.open(url)
    await tab.wait_for(_READY)
    await asyncio.sleep(1)
    await tab.screenshot(file, width=width, height=height, dark=dark)
    print(file)


async def documentation(tab: chromium.Page, directory: Path) -> None:
    """Make the documentation's screenshots."""
    async with served(troubled(directory)) as url:
        await picture(tab, url, _DOCS / "page.png", width=1280, height=1000)
        await picture(tab, f"{url}?pod={_POD}", _DOCS / "page-pod.png", width=1280, height=900)
        await picture(tab, f"{url}?detail=tokyo", _DOCS / "page-cluster.png", width=1280, height=760)
        await picture(tab, url, _DOCS / "page-narrow.png", width=400, height=1000, dark=True)


async def cases(tab: chromium.Page, directory: Path, target: Path) -> None:
    """Make a screenshot of every case, wide and narrow, light and dark."""
    standby = Scene(3)
    standby.leader = "virtual-node-7c9d-x2x1"
    sharded = Scene(3, has_trouble=False)
    sharded.elsewhere = {"osaka": "virtual-node-7c9d-x2x1", "lagos": "virtual-node-7c9d-m8q4"}
    scenes = {
        "3": Scene(3, has_trouble=False, directory=directory),
        "60": Scene(60, directory=directory),
        "trouble": troubled(directory),
        "10000": troubled(directory, 10_000),
        "standby": standby,
        "sharded": sharded,
    }
    views = {
        "": "",
        "-pod": f"?pod={_POD}",
        "-cluster": "?detail=tokyo",
        "-open": "?open=shop/Deployment/checkout",
    }
    for name, scene in scenes.items():
        async with served(scene) as url:
            for suffix, query in views.items() if name == "trouble" else [("", "")]:
                for width, dark in ((1280, False), (1280, True), (400, False), (400, True)):
                    file = target / f"{name}{suffix}-{width}{'-dark' if dark else ''}.png"
                    height = 1400 if width == 1280 else 2000
                    await picture(tab, url + query, file, width=width, height=height, dark=dark)


async def main(arguments: list[str]) -> None:
    """Make the screenshots."""
    with tempfile.TemporaryDirectory() as directory:
        async with chromium.page() as tab:
            if arguments:
                target = Path(arguments[0])
                target.mkdir(parents=True, exist_ok=True)
                await cases(tab, Path(directory), target)
            else:
                await documentation(tab, Path(directory))


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1:]))
    except SandboxError as problem:
        sys.exit(f"hack.page: {problem}")
