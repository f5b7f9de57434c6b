"""The check for two owners of a job in tests on real clusters."""

from __future__ import annotations

import pytest

from hack.swarm import token_log
from hack.swarm.token_log import StaleTokenError, append, gaps, overlaps, ownerships


def test_refuses_a_stale_token_and_finds_no_overlap(tmp_path):
    """An owner that lost its job cannot write any more."""
    append(tmp_path, "a", token=3, worker="w0", event="start")
    append(tmp_path, "a", token=3, worker="w0", event="stop")
    append(tmp_path, "a", token=5, worker="w1", event="start")
    with pytest.raises(StaleTokenError, match="token 3 is stale, 5 was used"):
        append(tmp_path, "a", token=3, worker="w0", event="work")
    assert overlaps(tmp_path) == []
    assert [(one.worker, one.stopped) for one in ownerships(tmp_path)["a"]] == [("w0", True), ("w1", False)]
    assert len(gaps(tmp_path)["a"]) == 1


def test_finds_an_owner_that_writes_after_a_later_one(tmp_path, monkeypatch):
    """As with a store that does not check tokens."""
    monkeypatch.setattr(token_log, "_last_token", lambda _: 0)
    for worker, token in (("w0", 3), ("w1", 5), ("w0", 3)):
        append(tmp_path, "a", token=token, worker=worker, event="work")
    assert len(overlaps(tmp_path)) == 1


def test_finds_two_owners_with_one_token(tmp_path):
    """Equal tokens do not protect. The restart of a failed job is not another owner."""
    for worker in ("w0", "w0", "w1"):
        append(tmp_path, "a", token=3, worker=worker, event="start")
    assert len(overlaps(tmp_path)) == 1
