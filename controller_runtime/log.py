"""Structured logs of a daemon: JSON or columns, with one renderer for the process.

``configure`` is called at start. Every module calls ``get_logger(component=…)`` and binds the cluster
if it has one. Records of the standard library's ``logging`` (asyncio, aiohttp) are rendered the same way.
Three guarantees:

- Logging never fails its caller: after a broken pipe, a full non-blocking pipe or a value that cannot be
  encoded, at most the line is lost.
- Lines have no secrets, and no value makes a line long or slow. Logged values contain text from tenants and API
  servers (a selector in an error message, a proxy's error page). So text is cut before patterns are applied, and no
  pattern can backtrack over more than a word.
- Level names and JSON keys are those of logrus (``time level msg``), because users of tensile-kube have these
  names in their flags and log pipelines.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from controller_runtime.apimachinery import readable
from controller_runtime.errors import ConfigError


@contextlib.contextmanager
def unavailable(library: str) -> Iterator[None]:
    """Make imports of a library fail during the block, unless it is imported already."""
    if library in sys.modules:
        yield
        return
    sys.modules[library] = None  # type: ignore[assignment]  # Python then raises ModuleNotFoundError
    try:
        yield
    finally:
        del sys.modules[library]


with unavailable("rich"):  # structlog needs it only for tracebacks with local variables, which are not logged
    import structlog
    from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

TRACE = 5
LEVELS: Mapping[str, int] = {
    "trace": TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
    "panic": logging.CRITICAL,
}
"""logrus' level names and their number in ``logging``."""
_KLOG_DEBUG = 4
"""klog verbosity at which Kubernetes components log debug messages."""
_LEVEL_NAMES = {TRACE: "trace"} | {
    number: logging.getLevelName(number).lower()
    for number in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
}
REDACTED = "[redacted]"
LONGEST_VALUE = 4096
"""Maximum characters kept of one value."""
LONGEST_TRACEBACK = 16 * 1024
"""Maximum characters kept of a traceback, which contains values and code locations."""
LONGEST_LINE = 32 * 1024
"""Maximum characters of all values of one line; each list item and mapping entry also counts ``_ITEM``."""
_LONGEST_NAME = 256
_LONGEST_SECRET_NAME = 64
"""Maximum characters of a key that is compared with ``_SECRET_NAMES``; the result is cached. Tenants may control keys
of logged mappings."""
_NESTING = 8
_PLAIN = (bool, int, float)  # not a union, which each call would build again
_ITEM = 8
"""Characters that each value counts in addition to its text, so that a million empty values are limited,
too."""
_TRACEBACKS = frozenset({"exception", "stack"})
"""Keys of texts with several lines."""
_SECRET_NAMES = frozenset(
    {
        "accesstoken",
        "authorization",
        "bearertoken",
        "clientkey",
        "clientkeydata",
        "cookie",
        "idtoken",
        "passwd",
        "password",
        "privatekey",
        "proxyauthorization",
        "refreshtoken",
        "setcookie",
        "token",
    }
)
_SECRET_TEXT = re.compile(
    r"(?P<scheme>\b(?:bearer|basic)\s++)[\w\-.~+/=]{8,}+"
    r"|-----BEGIN [A-Z ]{0,64}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,64}PRIVATE KEY-----|\Z)"
    # A JWT, also a truncated one without its dots.
    r"|\b(?-i:eyJ)[\w-]{8,}+(?:\.[\w-]*+){0,2}",
    re.IGNORECASE | re.DOTALL,
)


class ByteStream(Protocol):
    """The destination of lines: an unbuffered binary file such as ``open(2, "wb", buffering=0)``."""

    def write(self, data: bytes, /) -> int | None:
        """Write some of the bytes; return the number written, None when the stream would block."""


def configure(
    level: str = "info",
    format: str = "auto",  # noqa: A002 - named as the flag is
    *,
    klog_v: int | None = None,
    stream: ByteStream | None = None,
) -> None:
    """Configure logging of the process, including the standard library's. May be called again.

    Args:
        level: one of ``LEVELS``, in any case. ``trace`` is ``debug`` plus the debug lines of libraries.
        format: ``json``, ``console``, or ``auto``: console if standard error is a terminal.
        klog_v: klog's ``-v``; 4 and more means at least ``debug``.
        stream: the destination; None: standard error.

    Raises:
        ConfigError: unknown level or format.
    """
    number = LEVELS.get(level.lower())
    if number is None:
        raise ConfigError(f"log level {level!r} is not one of {', '.join(LEVELS)}")
    if format not in {"json", "console", "auto"}:
        raise ConfigError(f"log format {format!r} is not one of json, console, auto")
    if klog_v is not None and klog_v >= _KLOG_DEBUG:
        number = min(number, logging.DEBUG)
    terminal = stream is None and sys.stderr is not None and sys.stderr.isatty()
    console = format == "console" or (format == "auto" and terminal)
    sink = _Sink(stream if stream is not None else _standard_error())
    processors: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        _stamp,
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        lambda _logger, _method, event: redact(event),
        _console(colors=terminal and "NO_COLOR" not in os.environ) if console else _json_line,
    ]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(max(number, logging.DEBUG)),
        logger_factory=lambda *_: sink,
        # A cached logger would keep an earlier configuration; binding again costs a microsecond.
        cache_logger_on_first_use=False,
    )
    _adopt_standard_library(processors, sink, number)


def bind(**bound: object) -> None:
    """Bind values to every line of the log."""
    structlog.contextvars.bind_contextvars(**bound)


def get_logger(**bound: object) -> FilteringBoundLogger:
    """Return a logger with values bound to every line, such as ``component="pods", cluster="gpu-west"``.

    May be called at import, because each log call uses the configuration at that time.
    """
    logger: FilteringBoundLogger = structlog.get_logger(**bound)
    return logger


class _Sink:
    """Writes complete lines and ignores errors of the stream."""

    def __init__(self, stream: ByteStream | None) -> None:
        self._stream = stream

    def write(self, line: bytes) -> None:
        if self._stream is None:
            return
        rest = memoryview(line + b"\n")
        try:
            while rest:
                taken = self._stream.write(bytes(rest))
                if taken is None:  # a full pipe: drop the line, because waiting would stall the loop
                    return
                rest = rest[taken:]
        except (OSError, ValueError):  # a broken pipe, or the stream is closed
            return

    def __getattr__(self, name: str) -> Callable[[bytes], None]:
        # structlog calls the method named after the level.
        if name.startswith("_"):
            raise AttributeError(name)
        return self.write


def _standard_error() -> ByteStream | None:
    """Return standard error without Python's buffer, which would fail again at exit after a broken pipe."""
    try:
        return open(sys.stderr.fileno(), "wb", buffering=0, closefd=False)
    except (AttributeError, OSError, ValueError):  # no standard error, or a replacement without a file
        return getattr(sys.stderr, "buffer", None)


class _StandardLibraryHandler(logging.Handler):
    """Sends records of ``logging`` through structlog's processors."""

    def __init__(self, processors: list[Processor], sink: _Sink) -> None:
        super().__init__()
        self._processors = processors
        self._sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line: Any = {
                "event": record.getMessage(),
                "component": record.name,
                "exc_info": record.exc_info or None,
            }
            level = max((limit for limit in _LEVEL_NAMES if limit <= record.levelno), default=TRACE)
            for processor in self._processors:
                line = processor(None, _LEVEL_NAMES[level], line)
            self._sink.write(line)
        except Exception:  # noqa: BLE001 - an invalid format string must not fail the caller
            self._sink.write(f"cannot render a log record of {record.name}: {record.msg!r}".encode())


def _adopt_standard_library(processors: list[Processor], sink: _Sink, level: int) -> None:
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, _StandardLibraryHandler):
            root.removeHandler(handler)
    handler = _StandardLibraryHandler(processors, sink)
    handler.addFilter(_is_not_client_error)
    root.addHandler(handler)
    root.setLevel(level if level != logging.DEBUG else logging.INFO)
    logging.captureWarnings(capture=True)


def _is_not_client_error(record: logging.LogRecord) -> bool:
    """Return False for errors that aiohttp's server logs because of closed connections and port scans."""
    kind = (record.exc_info and record.exc_info[0]) or Exception
    is_client_error = issubclass(kind, ConnectionError) or kind.__module__ == "aiohttp.http_exceptions"
    return not is_client_error or record.name != "aiohttp.server"


def _stamp(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Put time, level and message first, under logrus' names."""
    message = event.pop("event", "")
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    level = {"exception": "error", "warn": "warning", "fatal": "critical"}.get(method, method)
    return {"time": now, "level": level, "msg": message, **event}


# --- renderers


def _json_line(_logger: WrappedLogger, _method: str, event: EventDict) -> bytes:
    try:
        return msgspec.json.encode(event, enc_hook=str)
    except (TypeError, ValueError, OverflowError, RecursionError):
        # The line has lone surrogates or invalid keys: encode it more slowly instead of losing it.
        return json.dumps({str(key): str(value) for key, value in event.items()}).encode()


def _console(*, colors: bool) -> Processor:
    """Return a renderer of columns, and plain tracebacks: those of ``rich`` show local variables with secrets."""
    render = structlog.dev.ConsoleRenderer(
        colors=colors,
        timestamp_key="time",
        event_key="msg",
        exception_formatter=structlog.dev.plain_traceback,
    )

    def console(logger: WrappedLogger, method: str, event: EventDict) -> bytes:
        shown = {key: _shown(key, value) for key, value in event.items()}
        return render(logger, method, shown).encode("utf-8", "backslashreplace")

    return console


def _shown(key: str, value: Any) -> Any:
    """Return a value that cannot control the terminal. Texts in lists and other objects are shown with escapes."""
    if not isinstance(value, str):
        return value
    return readable.lines(value) if key in _TRACEBACKS else readable.one_line(value)


def redact(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a log line without secrets and within the limits of this module."""
    cleaner = _Cleaner()
    return {key: cleaner.clean(key, value, _NESTING) for key, value in line.items()}


class _Cleaner:
    """Cleans the values of one line, which share the limit of the line."""

    def __init__(self) -> None:
        self._left = LONGEST_LINE

    def clean(self, key: object, value: Any, depth: int) -> Any:
        """Return a value without secrets; containers nested more than ``depth`` levels are replaced by their size."""
        self._left -= _ITEM
        if value is None or isinstance(value, _PLAIN):
            return value
        if isinstance(key, str) and _is_secret(key):
            return REDACTED
        if isinstance(value, str):
            return self._text(value, LONGEST_TRACEBACK if key in _TRACEBACKS else LONGEST_VALUE)
        if isinstance(value, datetime):
            return value
        if isinstance(value, bytes | bytearray):
            return self._text(bytes(value).decode("utf-8", "replace"), LONGEST_VALUE)
        if not isinstance(value, Mapping | list | tuple | set | frozenset):
            return self._text(str(value), LONGEST_VALUE)
        if depth == 0:  # The names of nested fields, which reveal secrets, are no longer checked.
            return f"… {len(value)} nested items"
        return self._mapping(value, depth) if isinstance(value, Mapping) else self._items(value, depth)

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[Any, Any]:
        hidden = {"data", "stringData"} if value.get("kind") == "Secret" else frozenset()
        cleaned: dict[Any, Any] = {}
        for name, item in value.items():
            if self._left <= 0:
                cleaned["…"] = f"{len(value) - len(cleaned)} more"
                break
            shown = self._text(name, _LONGEST_NAME) if isinstance(name, str) else name
            cleaned[shown] = REDACTED if name in hidden else self.clean(name, item, depth - 1)
        return cleaned

    def _items(self, value: Collection[Any], depth: int) -> list[Any]:
        cleaned: list[Any] = []
        for item in value:
            if self._left <= 0:
                cleaned.append(f"… {len(value) - len(cleaned)} more")
                break
            cleaned.append(self.clean(None, item, depth - 1))
        return cleaned

    def _text(self, text: str, longest: int) -> str:
        size = len(text)
        if size <= longest and size <= self._left:
            self._left -= size
            return _without_secrets(text)
        kept = min(longest, max(0, self._left))
        self._left -= kept
        return f"{_without_secrets(text[:kept])}… ({size - kept} more characters)"


def _without_secrets(text: str) -> str:
    return _SECRET_TEXT.sub(lambda match: (match["scheme"] or "") + REDACTED, text)


def _is_secret(key: str) -> bool:
    return len(key) <= _LONGEST_SECRET_NAME and _is_short_secret(key)


@functools.lru_cache(maxsize=1024)
def _is_short_secret(key: str) -> bool:
    return key.replace("-", "").replace("_", "").lower() in _SECRET_NAMES
