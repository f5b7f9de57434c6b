"""A headless Chromium, driven over the DevTools protocol; for tests and screenshots."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import aiohttp

from hack.sandbox.errors import SandboxError

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
_START_SECONDS = 90
_ANSWER_SECONDS = 90
_END_SECONDS = 5
_NETWORK_CHANGED = "ERR_NETWORK_CHANGED"
"""Chromium aborts all requests with this error when a network interface changes, such as the bridge of another test."""
_RELOAD_SECONDS = 5
"""Time in which a page whose request was aborted may recover by itself."""
_LOG_TAIL = 300
"""Characters of the browser's log that an error quotes."""
_KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " ")}
"""Key → Windows key code, and the text that the key enters."""


def is_installed() -> bool:
    """Report whether there is a Chromium on this machine."""
    return any(shutil.which(name) for name in _PROGRAMS)


class Page:
    """One tab.

    Args:
        socket: connection to its DevTools.
        ended: returns why the browser has ended; empty while it runs.
    """

    def __init__(
        self, socket: aiohttp.ClientWebSocketResponse, *, ended: Callable[[], Awaitable[str]]
    ) -> None:
        self._socket = socket
        self._ended = ended
        self._last = 0
        self._aborted = False
        self.console: list[str] = []
        """The page's log and exceptions, except requests that a changed network aborted."""

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command of the protocol and return its result.

        Raises:
            SandboxError: the browser refuses the command, does not answer in time, or has ended, or the tab crashed.
        """
        self._last += 1
        with contextlib.suppress(ConnectionError):  # ``_received`` reports a closed connection
            await self._socket.send_json({"id": self._last, "method": method, "params": parameters})
        while True:
            message = await self._received(method)
            if message.get("method") == "Inspector.targetCrashed":
                raise SandboxError(f"chromium: {method}: the tab crashed, often because of too little memory")
            if message.get("method") == "Log.entryAdded":
                text = message["params"]["entry"]["text"]
                if _NETWORK_CHANGED in text:
                    self._aborted = True
                else:
                    self.console.append(text)
            if message.get("method") == "Runtime.exceptionThrown":
                self.console.append(json.dumps(message["params"]["exceptionDetails"]))
            if message.get("id") == self._last:
                if "error" in message:
                    raise SandboxError(f"chromium: {method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result

    async def _received(self, method: str) -> dict[str, Any]:
        """Return the browser's next message."""
        try:
            received = await self._socket.receive(timeout=_ANSWER_SECONDS)
        except TimeoutError:
            raise SandboxError(f"chromium: {method}: no answer within {_ANSWER_SECONDS} s") from None
        if received.type is not aiohttp.WSMsgType.TEXT:
            why = await self._ended() or f"it closed the connection ({received.type.name})"
            raise SandboxError(f"chromium: {method}: {why}")
        message: dict[str, Any] = json.loads(received.data)
        return message

    async def open(self, url: str) -> Self:
        """Load a URL; return this page."""
        await self.call("Inspector.enable")
        await self.call("Log.enable")
        await self.call("Runtime.enable")
        answer = await self.call("Page.navigate", url=url)
        self._aborted = _NETWORK_CHANGED in answer.get("errorText", "")
        return self

    async def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page; promises are awaited."""
        answer = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        return answer["result"].get("value")

    async def wait_for(self, expression: str, *, seconds: float = 90.0) -> None:
        """Wait until an expression is true; reload the page if a changed network aborted one of its requests.

        Raises:
            SandboxError: it did not become true in time.
        """
        now = asyncio.get_running_loop().time
        deadline, reload = now() + seconds, now() + _RELOAD_SECONDS
        while not await self.evaluate(expression):
            if self._aborted and now() > reload:
                self._aborted, reload = False, now() + _RELOAD_SECONDS
                await self.call("Page.reload")
            if now() > deadline:
                text = await self.evaluate("document.body.innerText")
                raise SandboxError(f"the page never showed {expression}; its text: {text!r}, {self.console}")
            await asyncio.sleep(0.1)

    async def press(self, key: str) -> None:
        """Press and release a key, such as ``Tab`` or ``Enter``."""
        code, text = _KEYS[key]
        for kind in ("keyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, text=text
            )

    async def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the screen size and the colour scheme of the page."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def screenshot(self, path: Path, *, width: int, height: int, dark: bool = False) -> None:
        """Save the visible part of the page as a PNG."""
        await self.resize(width, height, dark=dark)
        answer = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(answer["data"]))


@contextlib.asynccontextmanager
async def page() -> AsyncIterator[Page]:
    """Run a browser with one empty tab inside the context.

    Raises:
        SandboxError: there is no Chromium, or it does not start.
    """
    program = next((found for name in _PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        raise SandboxError("no Chromium here: apt-get install --no-install-recommends chromium")
    with tempfile.TemporaryDirectory(prefix="virtual-node-chromium-", ignore_cleanup_errors=True) as profile:
        words = Path(profile) / "stderr"
        with words.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--no-first-run", "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
                stdout=asyncio.subprocess.DEVNULL, stderr=stderr,
            )  # fmt: skip

        async def ended() -> str:
            with contextlib.suppress(
                TimeoutError
            ):  # the connection closes before the process ends, so wait for the process
                await asyncio.wait_for(process.wait(), _END_SECONDS)
            return _why_ended(process.returncode, words.read_text(encoding="utf-8", errors="replace"))

        try:
            address = await _debugger(Path(profile) / "DevToolsActivePort", process, ended)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://{address}/json/list") as answer:
                    tabs = await answer.json()
                tab = next(tab for tab in tabs if tab["type"] == "page")
                async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    yield Page(socket, ended=ended)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            await asyncio.sleep(0.2)  # the browser's children write to the profile until they end


async def _debugger(
    file: Path, process: asyncio.subprocess.Process, ended: Callable[[], Awaitable[str]]
) -> str:
    for _ in range(_START_SECONDS * 10):
        if file.is_file() and (lines := file.read_text(encoding="utf-8").splitlines()):
            return f"127.0.0.1:{lines[0]}"
        if process.returncode is not None:
            raise SandboxError(f"chromium does not start: {await ended()}")
        await asyncio.sleep(0.1)
    raise SandboxError(f"chromium does not start within {_START_SECONDS} s")


def _why_ended(code: int | None, words: str) -> str:
    """Return why a browser has ended; empty while it runs."""
    if code is None:
        return ""
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    last = " ".join(words.split())[-_LOG_TAIL:]
    return f"the browser {how}" + (f": {last}" if last else "")
