"""How soon informers follow a server again, and how little they ask of one that suffers."""

from __future__ import annotations

import pytest

from controller_runtime.cache.watch_backoff import WatchBackoff
from controller_runtime.errors import ConnectionFailed, Expired, Forbidden, NotConnected, TooManyRequests

REFUSED = NotConnected("refused")
RESET = ConnectionFailed("reset")
OLD = Expired("too old resource version", code=410)


@pytest.fixture
def _steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without jitter."""
    monkeypatch.setattr("controller_runtime.cache.watch_backoff.random.random", lambda: 0.0)


def pauses(*errors: Exception, is_watch: bool = False) -> list[float]:
    """The pauses after errors that come a second apart."""
    patience = WatchBackoff()
    return [patience.pause(error, now=now, is_watch=is_watch) for now, error in enumerate(errors)]


@pytest.mark.usefixtures("_steady")
class TestPauses:
    """Each kind of trouble that a server may suffer from has a ladder of its own."""

    def test_server_that_accepts_no_connection_is_waited_for_in_line(self) -> None:
        """There is no pause besides; a long outage would leave a long one."""
        assert pauses(*[REFUSED] * 8) == [0.0] * 8

    def test_history_that_is_missing_is_read_at_once_and_then_backed_off(self) -> None:
        """The first list mends a restart; a server whose versions always expire is spared."""
        assert pauses(*[OLD] * 9) == pytest.approx([0, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30])

    def test_any_other_trouble_waits_as_client_go_does(self) -> None:
        """0.8 s doubled up to 30 s."""
        errors = [Forbidden("no", code=403), *[RESET] * 6]
        assert pauses(*errors) == pytest.approx([0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30])

    def test_watch_that_broke_is_resumed_at_once_the_first_time(self) -> None:
        """A list that broke is not: its server may have broken of it."""
        assert pauses(RESET, RESET, is_watch=True) == pytest.approx([0.05, 1.6])
        assert pauses(RESET) == pytest.approx([0.8])

    def test_long_outage_does_not_delay_what_comes_after_it(self) -> None:
        """A server that is back says 410, or 403 until it has read its roles: both begin at their own first step."""
        answers = pauses(*[REFUSED] * 50, OLD, Forbidden("no", code=403))
        assert answers[-2:] == pytest.approx([0, 0.8])

    def test_server_that_alternates_is_backed_off_all_the_same(self) -> None:
        """Two kinds of trouble in turn do not reset each other."""
        assert pauses(*[RESET, REFUSED] * 6)[-2] == pytest.approx(25.6)

    def test_retry_after_is_kept(self) -> None:
        """No sooner than the server asks."""
        assert pauses(TooManyRequests("busy", code=429, retry_after=20)) == pytest.approx([20])

    def test_two_quiet_minutes_begin_anew(self) -> None:
        """Trouble of long ago is forgotten."""
        patience = WatchBackoff()
        assert [patience.pause(OLD, now=now, is_watch=False) for now in (0, 10, 131)] == pytest.approx(
            [0, 0.8, 0]
        )
        assert (patience.attempts, patience.since) == (1, 131)


def test_lists_after_a_restart_are_spread() -> None:
    """Those who are told together that history is missing do not list in the same moment, nor late."""
    first = [pauses(OLD)[0] for _ in range(100)]
    assert 0 <= min(first) < 0.1 < max(first) <= 0.2
