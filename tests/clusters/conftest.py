"""Loads the fixtures of real clusters."""

from __future__ import annotations

import pytest

from tests.clusters import fixtures


def pytest_configure(config: pytest.Config) -> None:
    """Share one set of clusters with ``tests/field``."""
    fixtures.load(config)
