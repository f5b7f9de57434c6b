"""Kubeconfigs for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def whole(
    name: str = "one",
    *,
    cluster: dict[str, Any] | None = None,
    user: dict[str, Any] | None = None,
    **context: Any,
) -> dict[str, Any]:
    """Return a kubeconfig with one context."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": "c", "user": "u", **context}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://api.example:6443", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
    }


def write(path: Path, content: Any) -> str:
    """Write a kubeconfig, as YAML unless it is text; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return str(path)


def write_token(path: Path, token: str) -> None:
    """Write a kubeconfig with that token, for an unreachable server."""
    write(path, whole(cluster={"server": "http://127.0.0.1:1"}, user={"token": token}))
