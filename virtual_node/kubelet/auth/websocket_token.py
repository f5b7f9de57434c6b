"""Bearer tokens in the WebSocket protocol header, as browsers send them."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode
from collections.abc import Sequence

BEARER_PROTOCOL = "base64url.bearer.authorization.k8s.io."


def websocket_protocols(value: str) -> list[str]:
    """Split a ``Sec-WebSocket-Protocol`` header into protocols."""
    return [protocol for part in value.split(",") if (protocol := part.strip())]


def websocket_bearer_token(values: Sequence[str]) -> str | None:
    """Return the bearer token that a browser sent as a WebSocket protocol.

    Args:
        values: The request's ``Sec-WebSocket-Protocol`` headers.

    Returns:
        The token, or None if there is none.

    Raises:
        ValueError: There is more than one token, the token is the only protocol, or it is not UTF-8 text in
            base64url without padding.
    """
    protocols = [protocol for value in values for protocol in websocket_protocols(value)]
    tokens = [p.removeprefix(BEARER_PROTOCOL) for p in protocols if p.startswith(BEARER_PROTOCOL)]
    if not tokens:
        return None
    if len(tokens) > 1:
        raise ValueError("multiple base64.bearer.authorization tokens specified")
    if len(protocols) == 1:
        raise ValueError("missing additional subprotocol")
    encoded = tokens[0]
    if "=" in encoded:
        raise ValueError("invalid base64.bearer.authorization token encoding")
    try:
        token = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError("invalid base64.bearer.authorization token encoding") from error
    return token or None
