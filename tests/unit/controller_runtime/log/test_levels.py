"""Levels, and records of the standard library and other libraries."""

from __future__ import annotations

import asyncio
import logging
import warnings

import aiohttp
import aiohttp.http_exceptions
import pytest

from controller_runtime import log
from controller_runtime.errors import ConfigError
from tests.unit.controller_runtime.log.conftest import Lines


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
        """Each of logrus' names hides less severe lines."""
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
        """Klog's -v 4 and more shows debug lines at any level."""
        stream = Lines()
        log.configure("error", "json", klog_v=verbosity, stream=stream)
        log.get_logger().debug("x")
        assert bool(stream.all()) is shown

    def test_unknown_level_is_refused(self) -> None:
        """With a one-line error."""
        with pytest.raises(ConfigError, match="log level 'loud' is not one of trace, debug, info"):
            log.configure("loud")

    def test_unknown_format_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="log format 'xml' is not one of json, console, auto"):
            log.configure("info", "xml")


class TestStandardLibrary:
    """Records of ``logging``."""

    def test_library_records_become_lines(self, lines: Lines) -> None:
        """Of the same shape, with the logger as component."""
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
    def test_client_errors_are_not_logged(self, lines: Lines, error: Exception, *, told: bool) -> None:
        """Disconnects and invalid HTTP of clients are not logged; errors of handlers are."""
        try:
            raise error
        except Exception:
            logging.getLogger("aiohttp.server").exception("Error handling request")
        assert bool(lines.all()) is told

    async def test_asyncio_reports_are_lines(self, lines: Lines) -> None:
        """With their traceback."""
        loop = asyncio.get_running_loop()
        loop.default_exception_handler({"message": "lost", "exception": ValueError("boom")})
        assert lines.last()["component"] == "asyncio"
        assert "ValueError: boom" in lines.last()["exception"]

    def test_libraries_debug_lines_need_trace(self) -> None:
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
        """A line names the library."""
        record = logging.makeLogRecord({"name": "careless", "msg": "%d", "args": ("text",), "levelno": 40})
        # pytest's own handlers on the root logger would raise.
        ours = [one for one in logging.getLogger().handlers if isinstance(one, log._StandardLibraryHandler)]
        ours[0].handle(record)
        assert b"cannot render a log record of careless" in lines.getvalue()

    def test_configuring_twice_does_not_double_lines(self, lines: Lines) -> None:
        again = Lines()
        log.configure("info", "json", stream=again)
        logging.getLogger("x").error("once")
        assert len(again.all()) == 1
        assert lines.all() == []
