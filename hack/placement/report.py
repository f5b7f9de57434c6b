"""Draws the plots of the documentation."""

from __future__ import annotations


def write() -> None:
    """Draw all plots."""
