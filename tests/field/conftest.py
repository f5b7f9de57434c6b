"""The clusters of the end-to-end tests, for the field cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import namespace, sandbox, upper, web_address

__all__ = ["namespace", "sandbox", "upper", "web_address"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run every test on the event loop of the shared sandbox."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and isinstance(item, pytest.Function):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
