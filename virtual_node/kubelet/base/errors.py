"""Error responses of the kubelet API: a status code and one line of plain text, as the kubelet sends them."""

from __future__ import annotations

import json

from controller_runtime.errors import ApiError


class Refusal(Exception):  # noqa: N818 - a response to a client, not an error of this program
    """A request that gets an error response.

    Attributes:
        status: HTTP status code.
        text: The body as plain text. The upper apiserver passes it to the user.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def quoted(text: str) -> str:
    """Quote a name from a request as Go's ``%q`` does, so that it cannot contain a line break."""
    return json.dumps(text)


def unreachable(cluster: str, error: Exception) -> Refusal:
    """Return the error response for a lower cluster that cannot be reached, with the cause."""
    why = error.message if isinstance(error, ApiError) else str(error) or type(error).__name__
    return Refusal(500, f"cluster {quoted(cluster)} cannot be reached: {why}")


def refusal_from_lower(error: ApiError, *, cluster: str) -> Refusal:
    """Return the error response for an error of the lower API server, so that its text reaches the user.

    The upper API server passes on a kubelet's text only with 400, 403 and 500. For other codes it uses a
    generic text (apimachinery, ``NewGenericServerResponse``). Other client errors except 429 therefore become
    400, which a kubelet also sends after it has found the pod. A lower 401 concerns the virtual node's
    credentials, not the user's. It becomes 500, because kubectl would otherwise ask the user to log in.
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
