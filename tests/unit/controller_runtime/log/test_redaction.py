"""Log lines are bounded in size and in the time of redaction, for hostile values, too."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_runtime import log
from tests.unit.growth import assert_linear

JWT = "eyJhbGciOiJSUzI1NiJ9.hunter2hunter2.hunter2sig"


@pytest.mark.parametrize(
    "unit",
    [
        *("eyJaaaaaaaa-", "eyJaaaaaaaa.", "eyJ.", "eyJaaaaaaaa.aaaaaaaa.a ", "eyJaaaaaaaa", "-eyJaaaaaaaa"),
        *("bearer ", "basic  \t", "bearer a", "bearer aaaaaaaa ", "bearerbearer"),
        *("-----BEGIN ", "-----BEGIN A", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY"),
        *("PRIVATE KEY", "-----END ", "-----END PRIVATE KEY", "-", "- ", " ", "\n", "a", "ſ"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "eyJ", "bearer ", "-----BEGIN ", "-----BEGIN PRIVATE KEY-----"])
def test_time_to_find_secrets_grows_linearly(prefix: str, unit: str) -> None:
    """No repetition of a pattern's parts makes it backtrack over the whole text."""
    assert_linear(log._without_secrets, lambda n: prefix + unit * (n // len(unit)) + "!")


def test_line_of_hostile_values_takes_milliseconds() -> None:
    """A line takes 10 ms at most for any values: 2 s for 96 KiB blocked every cluster before."""
    line = {f"value{n}": "eyJaaaaaaaa-" * 100_000 for n in range(20)}
    line["deep"] = [{"k" * 100_000: ["bearer " * 100_000] * 1000}] * 1000  # type: ignore[assignment]
    times = []
    for _ in range(5):
        started = time.thread_time()
        log.redact(line)
        times.append(time.thread_time() - started)
    assert min(times) < 0.01


class TestLimits:
    """Limits of logged values."""

    def test_long_value_is_cut(self) -> None:
        """The beginning is kept, with the number of missing characters."""
        text = "x" * 100_000
        cut = log.redact({"error": text})["error"]
        assert cut == "x" * 4096 + "… (95904 more characters)"

    def test_containers_beyond_the_depth_show_only_their_size(self) -> None:
        """Their text could contain a secret that only its field's name reveals."""
        value: object = {"password": "hunter2"}
        for _ in range(8):
            value = {"nested": value}
        assert "hunter2" not in str(log.redact({"value": value}))
        assert "… 1 nested items" in str(log.redact({"value": value}))

    def test_value_at_the_limit_is_complete(self) -> None:
        text = "x" * 4096
        assert log.redact({"error": text}) == {"error": text}

    def test_traceback_has_more_room(self) -> None:
        """A traceback of 16 KiB is complete."""
        text = "x" * 16_384
        assert log.redact({"exception": text}) == {"exception": text}

    def test_secret_at_the_cut_is_replaced(self) -> None:
        """Nothing of a cut token, key or password is shown."""
        for secret in (JWT, "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----"):
            for kept in range(1, len(secret)):
                text = " " * (4096 - kept) + secret
                assert "hunter2" not in log.redact({"error": text})["error"]

    @given(
        st.recursive(
            st.text() | st.integers() | st.binary() | st.sampled_from(["x" * 9000, "eyJaaaaaaaa-" * 900]),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=50,
        )
    )
    def test_line_is_bounded(self, value: object) -> None:
        """The total length of all strings has a limit."""
        line = log.redact({"a": [value] * 20, "b": [value] * 20})
        # The note about the cut is added, once per value.
        assert _characters(line) < 2 * log.LONGEST_LINE

    def test_many_small_values_are_cut(self) -> None:
        """A list of many numbers and a mapping of many keys are cut, too."""
        many = 100_000
        numbers = log.redact({"a": list(range(many))})["a"]
        assert len(numbers) < 10_000
        assert numbers[-1] == f"… {many - len(numbers) + 1} more"
        keys = log.redact({"a": dict.fromkeys(map(str, range(many)))})["a"]
        assert len(keys) < 10_000
        assert keys["…"] == f"{many - len(keys) + 1} more"

    def test_cache_of_keys_is_bounded(self) -> None:
        """Tenants control keys of logged mappings."""
        before = log._is_short_secret.cache_info().currsize
        log.redact({"labels": {"k" * 1000: "v"}})
        assert log._is_short_secret.cache_info().currsize <= before + 1


def _characters(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(_characters(key) + _characters(item) for key, item in value.items())
    return sum(map(_characters, value)) if isinstance(value, list) else 0
