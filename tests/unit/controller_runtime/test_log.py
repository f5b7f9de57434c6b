from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn

import aiohttp
import aiohttp.http_exceptions
import pytest
import structlog

from controller_runtime import log
from controller_runtime.errors import ConfigError


class Lines(io.BytesIO):
    """A stream that remembers what was logged."""

    def all(self) -> list[dict[str, Any]]:
        """Every line, decoded."""
        return [json.loads(line) for line in self.getvalue().splitlines()]

    def last(self) -> dict[str, Any]:
        """The last line, decoded."""
        return self.all()[-1]


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Put the process' logging back as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


@pytest.fixture
def lines() -> Lines:
    """JSON logging at level info into memory."""
    stream = Lines()
    log.configure("info", "json", stream=stream)
    return stream


def fail(error: Exception) -> NoReturn:
    """Raise it."""
    raise error


class TestLines:
    """The shape of a line."""

    def test_json_line_has_logrus_names_first(self, lines: Lines) -> None:
        """A line is one JSON object: time in UTC, level, msg, then what was bound."""
        log.get_logger(component="pods", cluster="west").info("created", pod="a/b", took=0.5)
        line = lines.last()
        assert list(line)[:3] == ["time", "level", "msg"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
        assert line == {
            "level": "info",
            "msg": "created",
            "component": "pods",
            "cluster": "west",
            "pod": "a/b",
            "took": 0.5,
        }

    def test_loggers_made_at_import_take_on_the_configuration(self) -> None:
        """A logger made before configure() writes where configure() says, also the second time."""
        logger = log.get_logger(component="early")
        first, second = Lines(), Lines()
        log.configure("info", "json", stream=first)
        logger.info("one")
        log.configure("error", "json", stream=second)
        logger.info("hidden")
        logger.error("two")
        assert [line["msg"] for line in first.all()] == ["one"]
        assert [line["msg"] for line in second.all()] == ["two"]

    def test_context_variables_are_part_of_the_line(self, lines: Lines) -> None:
        """What a task binds to structlog's context appears on its lines."""
        with structlog.contextvars.bound_contextvars(cluster="east"):
            log.get_logger().info("hello")
        assert lines.last()["cluster"] == "east"

    def test_exceptions_become_text(self, lines: Lines) -> None:
        """A traceback is one field of the line."""
        try:
            fail(ValueError("boom"))
        except ValueError:
            log.get_logger().exception("failed")
        assert lines.last()["level"] == "error"
        assert "ValueError: boom" in lines.last()["exception"]

    @pytest.mark.parametrize(
        "value",
        [
            {1, 2},
            b"\xff\x00",
            pytest.param(object(), id="object"),
            "\ud800",
            {1.5: 2},
            {(1, 2): 3},
            1 << 70,
            float("nan"),
            ConfigError("x"),
        ],
        ids=repr,
    )
    def test_no_value_fails_the_caller(self, lines: Lines, value: object) -> None:
        """Whatever is logged, a line that is JSON comes out."""
        log.get_logger().info("odd", value=value)
        assert lines.last()["msg"] == "odd"

    def test_endless_value_is_cut(self, lines: Lines) -> None:
        """A container that contains itself is logged as far as eight levels."""
        loop: list[object] = []
        loop.append(loop)
        log.get_logger().info("round", value=loop)
        assert lines.last()["msg"] == "round"

    def test_console_is_for_people(self) -> None:
        """The console format is a plain line with the bound values, without colours when not on a terminal."""
        stream = Lines()
        log.configure("info", "console", stream=stream)
        log.get_logger(cluster="west").warning("something", pod="a/b")
        text = stream.getvalue().decode()
        assert re.search(r"\[warning *\] something +cluster=west pod=a/b\n$", text)
        assert "\x1b" not in text

    def test_console_shows_no_local_variables(self) -> None:
        """A traceback for people does not print the values of variables."""
        stream = Lines()
        log.configure("info", "console", stream=stream)
        hidden = "swordfish"
        try:
            fail(ValueError(len(hidden)))
        except ValueError:
            log.get_logger().exception("failed")
        assert "ValueError: 9" in stream.getvalue().decode()
        assert "'swordfish'" not in stream.getvalue().decode()


class TestLevels:
    """Level flags."""

    @pytest.mark.parametrize(
        ("level", "shown"),
        [
            ("trace", ["debug", "info", "warning", "error"]),
            ("debug", ["debug", "info", "warning", "error"]),
            ("INFO", ["info", "warning", "error"]),
            ("warn", ["warning", "error"]),
            ("warning", ["warning", "error"]),
            ("error", ["error"]),
            ("fatal", []),
            ("panic", []),
        ],
    )
    def test_logrus_level(self, level: str, shown: list[str]) -> None:
        """Each of logrus' names hides what is below it."""
        stream = Lines()
        log.configure(level, "json", stream=stream)
        logger = log.get_logger()
        for name in ("debug", "info", "warning", "error"):
            getattr(logger, name)("x")
        assert [line["level"] for line in stream.all()] == shown

    @pytest.mark.parametrize(
        ("verbosity", "shown"), [(None, False), (0, False), (3, False), (4, True), (9, True)]
    )
    def test_klog_verbosity(self, verbosity: int | None, *, shown: bool) -> None:
        """Klog's -v 4 and more shows debugging whatever the level says."""
        stream = Lines()
        log.configure("error", "json", klog_v=verbosity, stream=stream)
        log.get_logger().debug("x")
        assert bool(stream.all()) is shown

    def test_unknown_level_is_refused(self) -> None:
        """A level that logrus does not know is one clear line."""
        with pytest.raises(ConfigError, match="log level 'loud' is not one of trace, debug, info"):
            log.configure("loud")

    def test_unknown_format_is_refused(self) -> None:
        """So is a format."""
        with pytest.raises(ConfigError, match="log format 'xml' is not one of json, console, auto"):
            log.configure("info", "xml")


class TestStandardLibrary:
    """Records of ``logging``."""

    def test_takes_the_same_way_out(self, lines: Lines) -> None:
        """A library's record becomes a line of the same shape, with the logger as component."""
        logging.getLogger("aiohttp.server").error("Error handling %s", "request")
        line = lines.last()
        assert (line["level"], line["msg"], line["component"]) == (
            "error",
            "Error handling request",
            "aiohttp.server",
        )

    @pytest.mark.parametrize(
        ("error", "told"),
        [
            (ValueError("a fault of ours"), True),
            (ConnectionResetError("gone"), False),
            (aiohttp.ClientConnectionResetError("Cannot write to closing transport"), False),
            (aiohttp.http_exceptions.BadStatusLine("SSH-2.0"), False),
        ],
    )
    def test_what_clients_do_is_no_error(self, lines: Lines, error: Exception, *, told: bool) -> None:
        """Those who leave and those who speak no HTTP fill no log; faults of ours do."""
        try:
            raise error
        except Exception:
            logging.getLogger("aiohttp.server").exception("Error handling request")
        assert bool(lines.all()) is told

    async def test_asyncio_reports_are_lines(self, lines: Lines) -> None:
        """What the event loop reports is logged with its traceback."""
        loop = asyncio.get_running_loop()
        loop.default_exception_handler({"message": "lost", "exception": ValueError("boom")})
        assert lines.last()["component"] == "asyncio"
        assert "ValueError: boom" in lines.last()["exception"]

    def test_libraries_are_quieter_than_we(self) -> None:
        """Libraries' debug lines need trace."""
        for level, shown in (("debug", False), ("trace", True)):
            stream = Lines()
            log.configure(level, "json", stream=stream)
            logging.getLogger("asyncio").debug("Using selector")
            assert bool(stream.all()) is shown

    def test_warnings_are_lines(self, lines: Lines) -> None:
        """Python's warnings are logged instead of printed."""
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            # catch_warnings put the printing function back.
            logging.captureWarnings(capture=False)
            logging.captureWarnings(capture=True)
            warnings.warn("old", UserWarning, stacklevel=1)
        assert lines.last()["component"] == "py.warnings"

    def test_bad_format_string_does_not_fail_its_caller(self, lines: Lines) -> None:
        """A library that logs wrongly costs a line that names it."""
        record = logging.makeLogRecord({"name": "careless", "msg": "%d", "args": ("text",), "levelno": 40})
        # pytest's own handlers on the root logger would raise.
        ours = [one for one in logging.getLogger().handlers if isinstance(one, log._StandardLibraryHandler)]
        ours[0].handle(record)
        assert b"cannot render a log record of careless" in lines.getvalue()

    def test_configuring_twice_does_not_double_lines(self, lines: Lines) -> None:
        """A second configure() replaces the first."""
        again = Lines()
        log.configure("info", "json", stream=again)
        logging.getLogger("x").error("once")
        assert len(again.all()) == 1
        assert lines.all() == []


class TestSecrets:
    """What must never be written."""

    @pytest.mark.parametrize(
        "bound",
        [
            {"token": "hunter2"},
            {"headers": {"Authorization": "hunter2"}},
            {"config": {"users": [{"client-key-data": b"hunter2"}]}},
            {"password": ["hunter2"]},
            {"object": {"kind": "Secret", "metadata": {"name": "s"}, "data": {"k": "hunter2"}}},
            {"object": {"kind": "Secret", "stringData": {"k": "hunter2"}}},
            {"text": "curl -H 'Authorization: Bearer hunter2hunter2'"},
            {"text": "-----BEGIN EC PRIVATE KEY-----\nhunter2\n-----END EC PRIVATE KEY-----\n"},
            {"text": "cut -----BEGIN PRIVATE KEY-----\nhunter2"},
            {"error": ConfigError("token eyJhbGciOiJSUzI1NiJ9.hunter2hunter2.abc refused")},
        ],
        ids=repr,
    )
    def test_secrets_are_replaced(self, lines: Lines, bound: dict[str, Any]) -> None:
        """Secrets under telling names, of Secret objects, and inside texts are replaced."""
        log.get_logger().info("x", **bound)
        assert b"hunter2" not in lines.getvalue()
        assert b"[redacted]" in lines.getvalue()

    def test_tracebacks_too(self, lines: Lines) -> None:
        """So are those in an exception's text."""
        try:
            fail(RuntimeError("Bearer hunter2hunter2"))
        except RuntimeError:
            log.get_logger().exception("failed")
        assert b"hunter2" not in lines.getvalue()

    def test_names_of_secrets_are_no_secrets(self, lines: Lines) -> None:
        """A work queue's key and the name of a Secret are shown."""
        log.get_logger().info("synced", key="ns/name", secret="ns/pull-secret", data={"a": 1})
        line = lines.last()
        assert (line["key"], line["secret"], line["data"]) == ("ns/name", "ns/pull-secret", {"a": 1})


class TestStream:
    """A stream that gives trouble."""

    def test_broken_pipe_is_survived(self) -> None:
        """A process whose standard error loses its reader goes on and exits cleanly."""
        program = (
            "from controller_runtime import log\n"
            "import sys\n"
            "log.configure('info', 'json')\n"
            "log.get_logger().info('first')\n"
            "sys.stdin.read()\n"
            "for _ in range(1000): log.get_logger().info('into the void')\n"
            "print('alive')\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            assert json.loads(process.stderr.readline())["msg"] == "first"
            process.stderr.close()
            process.stdin.close()
            assert process.stdout.read() == b"alive\n"
            assert process.wait(10) == 0

    def test_full_pipe_does_not_stall(self) -> None:
        """A non-blocking pipe that nobody reads loses lines instead of stopping the process."""
        reader, writer = os.pipe()
        try:
            os.set_blocking(writer, False)
            with open(writer, "wb", buffering=0, closefd=False) as stream:
                log.configure("info", "json", stream=stream)
                for _ in range(2000):
                    log.get_logger().info("x" * 100)
            assert os.read(reader, 10)
        finally:
            os.close(reader)
            os.close(writer)

    def test_short_writes_are_completed(self) -> None:
        """A stream that takes a few bytes at a time gets the whole line."""

        class Slow:
            def __init__(self) -> None:
                self.taken = b""

            def write(self, data: bytes, /) -> int:
                self.taken += data[:7]
                return min(len(data), 7)

        stream = Slow()
        log.configure("info", "json", stream=stream)
        log.get_logger().info("a long enough line")
        assert json.loads(stream.taken)["msg"] == "a long enough line"

    def test_auto_is_json_when_not_on_a_terminal(self, capfd: pytest.CaptureFixture[str]) -> None:
        """The automatic format on a redirected standard error is JSON."""
        log.configure()
        log.get_logger().info("hello")
        assert json.loads(capfd.readouterr().err)["msg"] == "hello"

    def test_auto_is_console_on_a_terminal(self) -> None:
        """The automatic format on a terminal is for people, in colour."""
        controller, terminal = os.openpty()
        try:
            program = "from controller_runtime import log; log.configure(); log.get_logger().info('hello')"
            environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
            subprocess.run([sys.executable, "-c", program], stderr=terminal, check=True, env=environment)
            text = os.read(controller, 1000).decode()
        finally:
            os.close(controller)
            os.close(terminal)
        assert "hello" in text
        assert "\x1b[" in text
