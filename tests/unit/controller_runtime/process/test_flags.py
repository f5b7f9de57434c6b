"""Types of flags, as in Go."""

from __future__ import annotations

import pytest

from controller_runtime.errors import ConfigError
from controller_runtime.process import flags
from controller_runtime.process.terminal import Parser


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


def test_files_of_windows_are_read(tmp_path):
    """PowerShell's ``helm get values > FILE`` writes UTF-16 with a byte order mark, which Helm reads."""
    (tmp_path / "values").write_bytes("city: Zürich\r\n".encode("utf-16"))
    assert flags.read_text("--values", tmp_path / "values") == "city: Zürich\r\n"


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


def _parser() -> Parser:
    parser = Parser("program", about="Does something.")
    flags.add_switch(parser, "-w --watch", "watch")
    flags.add_switch(parser, "--dry-run", "pretend", words=flags.DRY_RUN)
    flags.add_boolean(parser, "--elect", default=True, help_text="elect")
    parser.add_argument("names", nargs="*")
    return parser


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", {}),
        ("--watch", {"watch": True}),
        ("-w a", {"watch": True, "names": ["a"]}),
        ("--watch=true", {"watch": True}),
        ("-w=T", {"watch": True}),
        ("--watch=false", {}),
        ("--dry-run=client", {"dry_run": True}),
        ("--dry-run=server a", {"dry_run": True, "names": ["a"]}),
        ("--dry-run=none", {}),
        ("--dry-run=false", {}),
        ("--elect=false a", {"elect": False, "names": ["a"]}),
        ("--elect a", {"names": ["a"]}),
        ("a --elect", {"names": ["a"]}),
        ("--elect false a", {"elect": False, "names": ["a"]}),
        ("--elect -- a", {"names": ["a"]}),
    ],
)
def test_booleans_are_written_as_for_kubectl(words: str, expected: dict[str, object]):
    """Go's flags take a value only behind ``=``, so the name of a pod after a boolean is no value."""
    defaults = {"watch": False, "dry_run": False, "elect": True, "names": []}
    assert vars(_parser().parse_args(words.split())) == {**defaults, **expected}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--watch=maybe", "program: --watch: 'maybe' is neither true nor false; see"),
        ("--watch=", "program: --watch: '' is neither true nor false; see"),
        ("--watch=client", "program: --watch: 'client' is neither true nor false; see"),
        ("--dry-run=all", "program: --dry-run: 'all' is neither true nor false (client, server, none); see"),
    ],
)
def test_other_values_of_a_switch_are_errors(word: str, message: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        _parser().parse_args([word])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(message)


def test_arguments_that_another_parser_reads_are_unchanged():
    """``cleanup`` passes the flags of the daemon on."""
    options, rest = _parser().parse_known_args(["--dry-run=client", "--other=x", "--more=true"])
    assert options.dry_run
    assert rest == ["--other=x", "--more=true"]
