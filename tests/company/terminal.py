"""A terminal program in tmux: the keys that a user presses, and the text of its screen."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from hack.sandbox import SandboxError
from hack.sandbox.command import command
from tests.waiting import becomes

_COLUMNS, _LINES = 160, 50


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, socket: Path) -> None:
        """Use a tmux server of its own.

        Raises:
            SandboxError: tmux is missing.
        """
        if not shutil.which("tmux"):
            raise SandboxError("this entry needs tmux: apt-get install tmux")
        self._tmux = ("tmux", "-f", "/dev/null", "-S", socket)

    async def start(self, argv: Sequence[str | Path], environment: Mapping[str, str | Path]) -> None:
        """Start the program, with further variables of its environment."""
        size = ("-x", str(_COLUMNS), "-y", str(_LINES))
        variables = [word for name, value in environment.items() for word in ("-e", f"{name}={value}")]
        await command([*self._tmux, "new-session", "-d", *size, *variables, *argv])

    async def press(self, *keys: str) -> None:
        """Press keys, by tmux' names, such as ``Enter`` and ``C-d``; other words are typed."""
        await command([*self._tmux, "send-keys", *keys])

    async def shows(self, pattern: str, what: str) -> str:
        """Wait until a line of the screen matches, and return the last match; the error quotes the screen."""
        matches: list[str] = []

        async def read() -> bool | list[str]:
            screen = (await command([*self._tmux, "capture-pane", "-p"])).stdout
            matches[:] = re.findall(pattern, screen, flags=re.MULTILINE)
            return True if matches else screen.splitlines()

        await becomes(read, True, what=f"the screen shows {what}")
        return matches[-1]

    async def stop(self) -> None:
        """End the program, if it still runs."""
        await command([*self._tmux, "kill-server"], check=False)
