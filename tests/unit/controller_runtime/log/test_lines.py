"""A line contains all its values, except secrets."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
import structlog

from controller_runtime import log
from controller_runtime.errors import ConfigError
from tests.unit.controller_runtime.log.conftest import Lines, fail


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

    def test_loggers_made_at_import_use_the_configuration(self) -> None:
        """Also a later one."""
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
        """Any logged value gives a line of JSON."""
        log.get_logger().info("odd", value=value)
        assert lines.last()["msg"] == "odd"

    def test_endless_value_is_cut(self, lines: Lines) -> None:
        """A container that contains itself is logged as far as eight levels."""
        loop: list[object] = []
        loop.append(loop)
        log.get_logger().info("round", value=loop)
        assert lines.last()["msg"] == "round"

    def test_console_is_plain_text(self) -> None:
        """With the bound values, without colours when not on a terminal."""
        stream = Lines()
        log.configure("info", "console", stream=stream)
        log.get_logger(cluster="west").warning("something", pod="a/b")
        text = stream.getvalue().decode()
        assert re.search(r"\[warning *\] something +cluster=west pod=a/b\n$", text)
        assert "\x1b" not in text

    def test_console_has_no_control_characters(self) -> None:
        """A daemon that is started by hand logs the errors of lower API servers."""
        stream, hostile = Lines(), "x\x1b[2J\x9b31m\r\u202e\u2028y"
        log.configure("info", "console", stream=stream)
        logger = log.get_logger(cluster=hostile)
        logger.warning(f"refused {hostile}", error=hostile, short="a\x1b[2J", many=[hostile])
        try:
            fail(ValueError(hostile))
        except ValueError:
            logger.exception("failed")
        shown = stream.getvalue().decode()
        assert shown.count("y") >= 4
        assert "Traceback" in shown
        assert not [character for character in shown if not character.isprintable() and character != "\n"]

    def test_console_shows_no_local_variables(self) -> None:
        """In tracebacks."""
        stream = Lines()
        log.configure("info", "console", stream=stream)
        hidden = "swordfish"
        try:
            fail(ValueError(len(hidden)))
        except ValueError:
            log.get_logger().exception("failed")
        assert "ValueError: 9" in stream.getvalue().decode()
        assert "'swordfish'" not in stream.getvalue().decode()


class TestSecrets:
    """Values that must never be logged."""

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
        """Under typical names, in Secret objects, and inside texts."""
        log.get_logger().info("x", **bound)
        assert b"hunter2" not in lines.getvalue()
        assert b"[redacted]" in lines.getvalue()

    def test_secrets_in_tracebacks_are_replaced(self, lines: Lines) -> None:
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


def test_the_log_does_not_import_rich():
    """Structlog would, for tracebacks with local variables, which take 3 MiB and a tenth of a second at start."""
    code = (
        "import sys; from controller_runtime import log; assert 'rich' not in sys.modules; import rich.table"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
