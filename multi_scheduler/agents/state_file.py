"""A file that keeps an agent's state across restarts. Errors are logged and otherwise ignored."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from structlog.typing import FilteringBoundLogger


class StateFile:
    """A file with one JSON object."""

    def __init__(self, path: str, log: FilteringBoundLogger) -> None:
        """Set the file; nothing is read yet. With an empty path, all methods do nothing."""
        self._path = Path(path) if path else None
        self._log = log
        self.saved = 0
        """Number of changes that the file contains."""

    def restore(self, accept: Callable[[Mapping[str, Any]], None]) -> None:
        """Call ``accept`` with the saved state, if the file can be read; ``accept`` raises ValueError for an invalid state."""
        if self._path is None:
            return
        try:
            accept(json.loads(self._path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            self._log.warning(
                "saved state not loaded, the agent starts without it", file=str(self._path), error=str(error)
            )

    def save(self, state: Callable[[], Mapping[str, Any]], changes: int) -> None:
        """Write the state unless the file has this number of changes. After a crash, the file has the old or the new state."""
        if self._path is None or changes == self.saved:
            return
        try:
            fresh = self._path.with_name(f"{self._path.name}.new")
            fresh.write_text(json.dumps(state()), encoding="utf-8")
            fresh.replace(self._path)
            self.saved = changes
        except OSError as error:
            self._log.warning("state not saved", file=str(self._path), error=str(error))
