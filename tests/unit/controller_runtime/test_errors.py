"""HTTP responses become exceptions with the server's message."""

from __future__ import annotations

import email.utils
import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_runtime import errors


def status(code: int, reason: str, message: str = "no", **more: object) -> bytes:
    """A Status object as the apiserver sends it."""
    return json.dumps(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": code,
            "reason": reason,
            "message": message,
            **more,
        }
    ).encode()


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (400, "BadRequest", errors.BadRequest),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Expired),
        (410, "Gone", errors.Expired),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.Unavailable),
        (502, "", errors.Unavailable),
        (503, "ServiceUnavailable", errors.Unavailable),
        (504, "Timeout", errors.ServerTimeout),
        (507, "", errors.Unavailable),
        (405, "MethodNotAllowed", errors.ApiError),
        (415, "UnsupportedMediaType", errors.ApiError),
    ],
)
def test_code_and_reason_choose_the_class(code: int, reason: str, expected: type) -> None:
    """Each HTTP code has its class, and 409 is told apart by the Status' reason."""
    error = errors.error_from_response(code, status(code, reason), {})
    assert type(error) is expected
    assert (error.code, error.reason, error.message) == (code, reason, "no")
    assert error.status["kind"] == "Status"


def test_conflict_and_already_exists_are_siblings() -> None:
    """So a handler of one does not catch the other."""
    assert not issubclass(errors.AlreadyExists, errors.Conflict)
    assert not issubclass(errors.Conflict, errors.AlreadyExists)


def test_text_of_an_error() -> None:
    """``str`` gives message, code and reason on one line."""
    error = errors.error_from_response(404, status(404, "NotFound", 'pods "x" not found'), {})
    assert str(error) == 'pods "x" not found (404 NotFound)'
    assert str(errors.ConnectionFailed("https://x: refused")) == "https://x: refused"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the server answered 502 without a message"),
        (b"<html>\n<h1>Bad\tGateway</h1>", "<html> <h1>Bad Gateway</h1>"),
        (b'{"kind":"Pod"}', '{"kind":"Pod"}'),
        (b"[1]", "[1]"),
        (b"\xff\xfe", "��"),
    ],
)
def test_other_bodies_are_quoted(body: bytes, message: str) -> None:
    """A body that is no Status, such as a proxy's page, is quoted on one line."""
    error = errors.error_from_response(502, body, {})
    assert (error.message, error.status) == (message, {})


def test_long_bodies_are_cut() -> None:
    """A page of any length gives a message of bounded length."""
    assert len(errors.error_from_response(500, b"x" * 10_000, {}).message) == 300


@pytest.mark.parametrize(
    ("header", "details", "expected"),
    [
        ("7", None, 7.0),
        ("0", None, 0.0),
        ("-3", None, 0.0),
        ("inf", None, None),
        ("soon", None, None),
        ("86400", None, 60.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", None, 60.0),
        (None, {"retryAfterSeconds": 86400}, 60.0),
        (None, {"retryAfterSeconds": 5}, 5.0),
        ("2", {"retryAfterSeconds": 5}, 2.0),
        (None, {"retryAfterSeconds": 0}, None),
        (None, {}, None),
        (None, None, None),
    ],
)
def test_retry_after(header: str | None, details: object, expected: float | None) -> None:
    """The header wins over the Status' details; an invalid one counts as absent."""
    headers = {} if header is None else {"Retry-After": header}
    body = status(429, "TooManyRequests", details=details)
    assert errors.error_from_response(429, body, headers).retry_after == expected


def test_retry_after_may_be_a_date() -> None:
    """A proxy may send Retry-After as an HTTP date."""
    date = email.utils.format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    after = errors.error_from_response(503, b"", {"Retry-After": date}).retry_after
    assert after == pytest.approx(30, abs=2)
    past = errors.error_from_response(503, b"", {"Retry-After": "Mon, 01 Jan 2001 00:00:00 GMT"})
    assert past.retry_after == 0


def test_status_of_a_watch() -> None:
    """An ERROR event's Status suffices: its own code and reason count."""
    error = errors.error_from_status(
        {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    )
    assert isinstance(error, errors.Expired)
    assert str(error) == "too old resource version (410 Expired)"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.ConnectionFailed("x"), True),
        (errors.Unavailable("x"), True),
        (errors.ServerTimeout("x"), True),
        (errors.TooManyRequests("x"), True),
        (errors.Conflict("x"), True),
        (TimeoutError(), True),
        (errors.AlreadyExists("x"), False),
        (errors.NotFound("x"), False),
        (errors.Forbidden("x"), False),
        (errors.Invalid("x"), False),
        (errors.Expired("x"), False),
        (errors.ConfigError("x"), False),
        (ValueError(), False),
    ],
)
def test_is_retryable(error: Exception, *, expected: bool) -> None:
    """Temporary errors are retryable; a refusal is not."""
    assert errors.is_retryable(error) is expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    code=st.integers(400, 599),
    body=st.binary(max_size=50)
    | st.fixed_dictionaries(
        {"kind": st.just("Status")},
        optional={"code": JSON, "reason": JSON, "message": JSON, "details": JSON},
    ).map(lambda value: json.dumps(value).encode()),
    header=st.none() | st.text(st.characters(codec="latin-1"), max_size=20),
)
def test_any_response_becomes_an_api_error(code: int, body: bytes, header: str | None) -> None:
    """Of one line, for any response of a server or proxy."""
    error = errors.error_from_response(code, body, {} if header is None else {"Retry-After": header})
    assert error.code == code
    assert error.message
    assert error.retry_after is None or error.retry_after >= 0
