"""The command lines' common words, as Go has them."""

from __future__ import annotations

import pytest

from controller_runtime import flags
from controller_runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0), ("10s", 10), ("1m30s", 90), ("250ms", 0.25), ("1.5h", 5400), ("1.s.5s", 1.5),
        ("3\u00b5s", 3e-6), ("3\u03bcs", 3e-6),
    ],
)  # fmt: skip
def test_durations_are_gos(text, seconds):
    """Durations are written as Go writes them."""
    assert flags.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "10", "s", ".s", "1d", "-5s", "1m 30s", "\u0665s"])
def test_other_durations_are_refused(text):
    """A number without a unit, or an unknown unit, is an error and not a guess."""
    with pytest.raises(ValueError, match="duration"):
        flags.parse_duration(text)


def test_a_file_that_cannot_be_read_is_named_with_its_flag(tmp_path):
    """In words, whatever is wrong with it."""
    with pytest.raises(ConfigError, match=r"^--config /nowhere: No such file or directory$"):
        flags.read_text("--config", "/nowhere")
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(ConfigError, match=r"^--config .*/latin: 'utf-8' codec can't decode"):
        flags.read_text("--config", tmp_path / "latin")
