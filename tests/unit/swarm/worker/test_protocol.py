"""Parsing and acceptance of shares."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.worker.identity import Settings
from swarm.worker.jobs import Held, Job, Phase
from swarm.worker.protocol import (
    Applied,
    Entry,
    Membership,
    Share,
    ShareError,
    accept,
    compact,
    join,
    parse,
    parse_part,
)

RAW = {
    "apiVersion": "swarm.virtual-node.io/v1alpha1",
    "kind": "Share",
    "podUID": "u",
    "session": "s",
    "version": 17,
    "handover": "Exclusive",
    "refresh": "Signal",
    "fenceSeconds": 0,
    "parts": 1,
    "jobs": [
        {"name": "stream:a", "weight": 2, "state": "start", "token": 9},
        {"name": "b", "weight": 1, "state": "hold"},
    ],
}
TEXT = json.dumps(RAW).encode()


def _accept(applied: Applied, share: Share, **more) -> Applied:
    return accept(applied, share, **{"session": "s", "pod_uid": "u", "can_renew": True, **more})


def test_reads_a_share():
    """Unknown fields are ignored."""
    share = parse(TEXT, "sha256:" + hashlib.sha256(TEXT).hexdigest())
    assert share == Share(17, "s", "u", (Entry("stream:a", "start", 9, 2), Entry("b", "hold")))


@given(length=st.integers(0, len(TEXT) - 1), flip=st.none() | st.integers(1, 255))
def test_refuses_damaged_text(length, flip):
    """Truncated text is never a share; with the checksum, every changed byte is detected."""
    damaged = TEXT[:length]
    if flip is not None:
        damaged += bytes([TEXT[length] ^ flip]) + TEXT[length + 1 :]
    else:
        with pytest.raises(ShareError):
            parse(damaged)
    with pytest.raises(ShareError, match="checksum"):
        parse(damaged, "sha256:" + hashlib.sha256(TEXT).hexdigest())


@given(
    raw=st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from([*RAW, "name", "state"]), inner)
        ),
    )
)
def test_raises_only_share_errors(raw):
    """Whatever a file contains, the worker continues with its last share."""
    for text in (raw, {**RAW, **(raw if isinstance(raw, dict) else {"jobs": raw})}):
        for read in (parse, parse_part):
            try:
                read(json.dumps(text).encode())
            except ShareError:
                continue


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"pod_uid": "another"}, "is for pod another"),
        ({"session": ""}, "is for session"),
        ({"session": "before"}, "is for session before"),
    ],
)
def test_refuses_shares_of_other_sessions_and_pods(change, reason):
    """An exclusive share for an earlier session may be outdated by a hand-over."""
    share = replace(parse(TEXT), **change)
    with pytest.raises(ShareError, match=reason):
        _accept(Applied(), share)


def test_accepts_any_session_with_overlap_but_only_its_own_pod():
    """With Overlap, availability takes precedence."""
    share = replace(parse(TEXT), session="before", exclusive=False)
    assert _accept(Applied(), share).version == 17
    assert _accept(Applied(), share, pod_uid="").version == 17
    with pytest.raises(ShareError):
        _accept(Applied(), replace(share, pod_uid="another"))


def test_refuses_a_fence_time_that_it_cannot_keep():
    """A worker that reads a file cannot renew a Lease."""
    fenced = replace(parse(TEXT), fence_seconds=30)
    with pytest.raises(ShareError, match="fenceSeconds"):
        _accept(Applied(), fenced, can_renew=False)
    assert _accept(Applied(), fenced).fence_seconds == 30
    assert _accept(Applied(), replace(fenced, exclusive=False), can_renew=False).fence_seconds == 0


@given(
    st.lists(
        st.tuples(
            st.integers(0, 6),
            st.dictionaries(st.sampled_from("abc"), st.sampled_from(["start", "stop", "hold"])),
        )
    )
)
def test_newest_share_wins_in_any_order(shares):
    """A version is processed once, and no earlier one after it."""
    applied, newest = Applied(), -1
    for version, states in shares:
        jobs = tuple(Entry(name, state) for name, state in states.items())
        before = applied
        applied = _accept(applied, Share(version, "s", "u", jobs))
        if version <= newest:
            assert applied == before
            continue
        newest = version
        assert applied.wanted is not None
        assert set(applied.wanted) == {name for name, state in states.items() if state == "start"}
        for name, job in applied.wanted.items():
            kept = (before.wanted or {}).get(name)
            assert job.token == (kept.token if kept else version)


def test_joins_only_parts_of_one_version():
    """Parts are written one after the other."""
    first = replace(parse(TEXT), parts=2)
    other = parse_part(json.dumps({**RAW, "jobs": [{"name": "c", "state": "start"}]}).encode())
    assert [one.name for one in join(first, [other]).jobs] == ["stream:a", "b", "c"]
    for bad in (
        [],
        [replace(other, version=16)],
        [replace(other, session="x")],
        [replace(other, jobs=first.jobs)],
    ):
        with pytest.raises(ShareError):
            join(first, bad)


def test_long_acknowledgement_fits_into_an_annotation():
    """A list that is too long is replaced by its length and the jobs that may be reassigned."""
    names = [f"{'x' * 240}-{number:05}" for number in range(2000)]
    held = {name: Held(Job(name), Phase.RUNNING, error="e" * 1000) for name in names[:1000]}
    membership = Membership(Settings(pod_uid="u"))
    membership.applied, membership.stopped = Applied(3), frozenset(names[500:])
    content = membership.acknowledgement(held)
    assert content["running"] is None
    assert content["runningCount"] == 1000
    assert 0 < len(content["stopped"]) < 1000
    assert set(content["stopped"]) <= set(names[1000:])
    assert len(compact(content)) < 256 * 1024
