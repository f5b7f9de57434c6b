"""How the kubelet API refuses a request: a code and one line of plain text, as the kubelet does."""

from __future__ import annotations

import json

from controller_runtime.errors import ApiError


class Refusal(Exception):  # noqa: N818 - an answer to a client, not a fault of ours
    """A request that is answered with an error.

    Attributes:
        status: HTTP status code.
        text: The body, plain text. The upper apiserver hands it to the user.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def quoted(text: str) -> str:
    """Quote a name from a request as Go's ``%q`` does, so that it cannot break out of its line."""
    return json.dumps(text)


def unreachable(cluster: str, error: Exception) -> Refusal:
    """Say that a lower cluster gives no answer, and why."""
    why = error.message if isinstance(error, ApiError) else str(error) or type(error).__name__
    return Refusal(500, f"cluster {quoted(cluster)} cannot be reached: {why}")


def refusal_from_lower(error: ApiError, *, cluster: str) -> Refusal:
    """Turn an error of the lower apiserver into one whose text reaches the user.

    The upper apiserver prints a kubelet's own words only for 400, 403 and 500 and replaces them by a
    stock phrase for the rest (apimachinery, ``NewGenericServerResponse``). So other client errors become
    400, which is also what a real kubelet answers once it knows the pod. A lower 401 is about the virtual
    node's credentials, never the user's, and becomes 500, or kubectl would ask the user to log in.
    """
    if error.code == 401:
        return Refusal(
            500, f"cluster {quoted(cluster)} does not accept the virtual node's credentials: {error.message}"
        )
    if error.code in {400, 403, 429}:
        return Refusal(error.code, error.message)
    if 400 <= error.code < 500:
        return Refusal(400, error.message)
    if error.code == 0:
        return unreachable(cluster, error)
    return Refusal(500, error.message)
