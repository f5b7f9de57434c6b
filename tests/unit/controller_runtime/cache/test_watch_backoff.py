"""Back-off of lists and watches: soon current again, and few requests to an unhealthy server."""

from __future__ import annotations

import pytest

from controller_runtime.cache.reflector import WatchBackoff
from controller_runtime.errors import ConnectionFailed, Expired, Forbidden, NotConnected, TooManyRequests

REFUSED = NotConnected("refused")
RESET = ConnectionFailed("reset")
OLD = Expired("too old resource version", code=410)


@pytest.fixture
def _steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable jitter."""
    monkeypatch.setattr("controller_runtime.cache.reflector.random.random", lambda: 0.0)


def pauses(*errors: Exception, is_watch: bool = False) -> list[float]:
    """Return the pauses after errors with a second between them."""
    patience = WatchBackoff()
    return [patience.pause(error, now=now, is_watch=is_watch) for now, error in enumerate(errors)]


@pytest.mark.usefixtures("_steady")
class TestPauses:
    """Each kind of failure has its own sequence of pauses."""

    def test_unreachable_server_has_no_additional_pause(self) -> None:
        """The reconnect queue already delays attempts."""
        assert pauses(*[REFUSED] * 8) == [0.0] * 8

    def test_missing_history_is_listed_at_once_then_backed_off(self) -> None:
        """The first list repairs a restart; a server with always expired versions is protected."""
        assert pauses(*[OLD] * 9) == pytest.approx([0, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30])

    def test_other_failures_wait_like_client_go(self) -> None:
        """0.8 s doubled up to 30 s."""
        errors = [Forbidden("no", code=403), *[RESET] * 6]
        assert pauses(*errors) == pytest.approx([0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30])

    def test_broken_watch_is_resumed_at_once_the_first_time(self) -> None:
        """A broken list is not, because the list may have broken the server."""
        assert pauses(RESET, RESET, is_watch=True) == pytest.approx([0.05, 1.6])
        assert pauses(RESET) == pytest.approx([0.8])

    def test_long_outage_does_not_delay_later_failures(self) -> None:
        """A server that is back returns 410, or 403 until it has read its roles: both start at their first step."""
        answers = pauses(*[REFUSED] * 50, OLD, Forbidden("no", code=403))
        assert answers[-2:] == pytest.approx([0, 0.8])

    def test_alternating_failures_are_backed_off(self) -> None:
        """Two kinds in turn do not reset each other."""
        assert pauses(*[RESET, REFUSED] * 6)[-2] == pytest.approx(25.6)

    def test_retry_after_is_respected(self) -> None:
        assert pauses(TooManyRequests("busy", code=429, retry_after=20)) == pytest.approx([20])

    def test_two_quiet_minutes_reset_the_back_off(self) -> None:
        patience = WatchBackoff()
        assert [patience.pause(OLD, now=now, is_watch=False) for now in (0, 10, 131)] == pytest.approx(
            [0, 0.8, 0]
        )
        assert (patience.attempts, patience.since) == (1, 131)


def test_lists_after_a_restart_are_spread() -> None:
    """Informers that lose their history together do not list in the same moment, nor late."""
    first = [pauses(OLD)[0] for _ in range(100)]
    assert 0 <= min(first) < 0.1 < max(first) <= 0.2
