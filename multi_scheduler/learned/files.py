"""The learned agent's files: its state, and the log of its decisions. Write errors are logged and otherwise ignored."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from structlog.typing import FilteringBoundLogger

from multi_scheduler.learned.memory import Memory
from multi_scheduler.state_file import StateFile

_LOG_BYTES = 16 * 1024 * 1024
"""Size at which the log is renamed with suffix ``.1``, which replaces the previous renamed log."""


class Files:
    """Reads and writes both files.

    Args:
        state: path of the state; empty: there is none.
        decisions: path of the log; empty: there is none.
        log: logger for files that cannot be read or written.
    """

    def __init__(self, state: str, decisions: str, log: FilteringBoundLogger) -> None:
        self._state = StateFile(state, log)
        self._decisions = Path(decisions) if decisions else None
        self._log = log
        self._saved = 0

    def write(self, **record: Any) -> None:
        """Append a decision or a reward to the log."""
        path = self._decisions
        if path is None:
            return
        try:
            if path.exists() and path.stat().st_size > _LOG_BYTES:
                path.replace(f"{path}.1")
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"time": time.time(), **record}, separators=(",", ":")) + "\n")
        except OSError as error:
            self._log.warning("decision not logged", file=str(path), error=str(error))

    def restore(self, memory: Memory) -> None:
        """Load the saved state, if it can be read."""
        self._state.restore(memory.restore)
        self._saved = memory.bandit.rewards

    def save(self, memory: Memory) -> None:
        """Save the state if it changed."""
        if self._saved != memory.bandit.rewards and self._state.save(memory.state()):
            self._saved = memory.bandit.rewards
