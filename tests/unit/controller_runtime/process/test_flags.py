"""Types of flags, as in Go."""

from __future__ import annotations

import pytest

from controller_runtime.errors import ConfigError
from controller_runtime.process import flags


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0), ("10s", 10), ("1m30s", 90), ("250ms", 0.25), ("1.5h", 5400), ("1.s.5s", 1.5),
        ("3\u00b5s", 3e-6), ("3\u03bcs", 3e-6),
    ],
)  # fmt: skip
def test_durations_are_gos(text, seconds):
    assert flags.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "10", "s", ".s", "1d", "-5s", "1m 30s", "\u0665s"])
def test_other_durations_are_refused(text):
    """Such as a number without a unit, or an unknown unit."""
    with pytest.raises(ValueError, match="duration"):
        flags.parse_duration(text)


def test_a_file_that_cannot_be_read_is_named_with_its_flag(tmp_path):
    with pytest.raises(ConfigError, match=r"^--config /nowhere: No such file or directory$"):
        flags.read_text("--config", "/nowhere")
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(ConfigError, match=r"^--config .*/latin: 'utf-8' codec can't decode"):
        flags.read_text("--config", tmp_path / "latin")


@pytest.mark.parametrize(
    ("line", "verbosity"),
    [
        ("--v=6", 6),
        ("--v 3", 3),
        ("-v=4", 4),
        ("-v 4", 4),
        ("-v4", 4),
        ("--klog.v=5", 5),
        ("-klog.v 5", 5),
        ("--v=2 --v=7", 7),
        ("", 0),
    ],
)
def test_accepts_klogs_verbosity_in_every_spelling(line: str, verbosity: int):
    """As pflag and Go's own flags do; other arguments are untouched."""
    rest, klog = flags.take_klog(["--port=1", *line.split(), "--nodename", "v"])
    assert (rest, klog) == (["--port=1", "--nodename", "v"], flags.Klog(verbosity))


@pytest.mark.parametrize(
    "line",
    [
        "--logtostderr",
        "--logtostderr=true",
        "--alsologtostderr",
        "-alsologtostderr=false",
        "--stderrthreshold=INFO",
        "--stderrthreshold 2",
        "--vmodule=pods=4",
        "--log_dir /var/log",
        "--log-dir=/var/log",
        "--log-file /x",
        "--log_file=/x",
        "--log-file-max-size=1800",
        "--skip_headers",
        "--skip-log-headers",
        "--add_dir_header=true",
        "--one-output",
        "--log_backtrace_at x.go:1",
        "--klog.logtostderr",
        "--klog.log_dir /x",
    ],
)
def test_accepts_klogs_other_flags_and_names_them(line: str):
    """With ``-`` or ``_``; a switch consumes no value."""
    rest, klog = flags.take_klog([*line.split(), "run", "--log-level=info"])
    assert rest == ["run", "--log-level=info"]
    assert klog == flags.Klog(0, (line.partition("=")[0].split()[0],))


@pytest.mark.parametrize("line", ["--v=high", "-v", "--v --port=1", "--log_dir"])
def test_klogs_flags_without_a_usable_value_are_refused(line: str):
    """The message names the flag."""
    with pytest.raises(ConfigError, match=f"^{line.partition('=')[0].split()[0]}: "):
        flags.take_klog(line.split())


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0"), (20, "20s"), (300, "5m"), (5400, "1h30m"), (0.5, "0.5s")]
)
def test_durations_are_formatted_as_in_go(seconds, text):
    """In the spelling that the flag accepts."""
    assert flags.format_duration(seconds) == text
