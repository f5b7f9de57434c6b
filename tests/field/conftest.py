"""Loads the fixtures of real clusters, for the field cases."""

from __future__ import annotations

import pytest

from tests.clusters import fixtures


def pytest_configure(config: pytest.Config) -> None:
    """Share one set of clusters with ``tests/clusters``."""
    fixtures.load(config)
