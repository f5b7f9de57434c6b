"""Decides from the error of a write whether an Event is tried again. No IO."""

from __future__ import annotations

from controller_runtime.errors import (
    AlreadyExists,
    ApiError,
    ConfigError,
    ConnectionFailed,
    NotFound,
    Unauthorized,
    is_retryable,
)


def concerns_all_events(error: ApiError | ConfigError) -> bool:
    """Report whether no Event can be written now: the server is not reached, or does not accept our credentials.

    Such an Event waits without a limit of tries, because dropping it would make no other Event arrive earlier.
    """
    return isinstance(error, (ConnectionFailed, Unauthorized, ConfigError))


def may_succeed_later(error: ApiError) -> bool:
    """Report whether this Event may be written later; also if it was created meanwhile, because it can be patched then."""
    return is_retryable(error) or isinstance(error, AlreadyExists)


def is_namespace_gone(error: ApiError) -> bool:
    """Report whether a create was refused because its namespace is terminating or does not exist."""
    causes = (error.status.get("details") or {}).get("causes") or []
    return isinstance(error, NotFound) or any(
        cause.get("reason") == "NamespaceTerminating" for cause in causes
    )
