"""The history of ``virtual-node inspect``: the findings of the last run with their age, and the last runs as counts."""

from __future__ import annotations

from typing import Literal

import msgspec

from controller_runtime.apimachinery.decoding import decoder

KEY = "history.json"
"""Key of the history in a ConfigMap's data."""
NEW: Literal["new"] = "new"
PERSISTING: Literal["persisting"] = "persisting"
FIXED: Literal["fixed"] = "fixed"
UNKNOWN: Literal["unknown"] = "unknown"
"""States of a finding. Unknown: the previous run had it, and this run could not read its object."""


class RecordedFinding(msgspec.Struct, frozen=True, kw_only=True):
    """An error or warning of the last run or, if fixed or unknown, of the previous run."""

    state: Literal["new", "persisting", "fixed", "unknown"]
    since: str
    """RFC 3339 time of the first run in a row that had the finding."""
    severity: Literal["error", "warning"]
    check: str
    cluster: str
    kind: str
    object: str
    message: str

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """Key that is equal for the same finding of two runs."""
        return self.check, self.cluster, self.kind, self.object


class InspectionRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run as counts."""

    time: str
    errors: int
    warnings: int
    new: int
    fixed: int


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a history."""

    format: Literal["virtual-node.io/inspection-history/v1"] = "virtual-node.io/inspection-history/v1"
    findings: list[RecordedFinding] = []
    runs: list[InspectionRun] = []
    """The last runs, the oldest first."""


parse = decoder(Inspection)
"""Returns the content of a history; raises msgspec.DecodeError if a text is not a history."""
