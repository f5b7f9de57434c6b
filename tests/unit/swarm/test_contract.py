"""The acknowledgement's format, as workers write it."""

from __future__ import annotations

from swarm.handover import ledger as ledgers


def test_reads_acknowledgements_of_workers():
    """Also a long one, and one that is not JSON."""
    text = (
        '{"podUID":"u","session":"s","life":2,"version":7,"running":["a"],"failing":{"b":"exit code 1"},'
        '"draining":true,"stopped":["c"],"more":1}'
    )
    expected = ledgers.Acknowledgement(
        pod_uid="u", session="s", life=2, version=7, running=["a"], failing={"b": "exit code 1"},
        draining=True, stopped=["c"],
    )  # fmt: skip
    assert ledgers.acknowledgement(text) == expected
    assert not expected.releases("a")
    assert expected.releases("b")
    long = ledgers.acknowledgement('{"podUID":"u","running":null,"runningCount":9,"stopped":["c"]}')
    assert long is not None
    assert (long.releases("a"), long.releases("c")) == (False, True)
    assert ledgers.acknowledgement("{") is None
    assert ledgers.acknowledgement('{"version": "x"}') is None
