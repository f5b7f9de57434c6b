"""Problems of the log's stream do not affect the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from controller_runtime import log


class TestStream:
    """A broken or slow stream."""

    def test_broken_pipe_is_survived(self) -> None:
        """A process with a closed standard error continues and exits cleanly."""
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
        """A non-blocking pipe without a reader loses lines."""
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
        """In colour."""
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
