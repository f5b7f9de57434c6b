"""``/containerLogs``: streams logs from the lower cluster."""

from __future__ import annotations

import re
from datetime import datetime

import aiohttp
from aiohttp import web
from multidict import MultiMapping

from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.log import get_logger
from controller_runtime.resources import PODS
from virtual_node.kubelet.base import Refusal, quoted, refusal_from_lower, unreachable
from virtual_node.kubelet.streams.limits import STREAM_BYTES
from virtual_node.kubelet.streams.routes import StreamHandlers

_log = get_logger(component="kubelet")

_FLAGS = ("follow", "previous", "timestamps")
_NUMBERS = {"tailLines": 0, "limitBytes": 1, "sinceSeconds": 1}
"""Options with numbers, and the minimum value of each."""
_INT64 = range(-(2**63), 2**63)
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)", re.ASCII)


class LogRoutes(StreamHandlers):
    """Handler of ``/containerLogs``."""

    async def container_logs(self, request: web.Request) -> web.StreamResponse:
        """Stream a container's log. If the client disconnects, the lower request ends, too."""
        options = log_options(request.query)
        pod, container = request.match_info["pod"], request.match_info["container"]
        target = self.find_pod(
            request,
            missing=f"pod {quoted(pod)} does not exist",
            absent=f"container {quoted(container)} not found in pod {quoted(pod)}",
        )
        path = PODS.path(namespace=target.namespace, name=target.name, subresource="log")
        params = {"container": container, **options}
        with self.registry.track("logs", request):
            try:
                async with target.client.stream(
                    "GET", path, params=params, read_timeout=self.idle_timeout
                ) as lower:
                    return await _copy(request, lower)
            except ApiError as error:
                raise refusal_from_lower(error, cluster=target.cluster) from error
            except ConfigError as error:
                raise unreachable(target.cluster, error) from error


async def _copy(request: web.Request, lower: aiohttp.ClientResponse) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
    await response.prepare(request)
    copied = 0
    try:
        async for chunk in lower.content.iter_any():
            copied += len(chunk)
            await response.write(chunk)
    except (aiohttp.ClientPayloadError, aiohttp.ClientConnectionError, TimeoutError) as error:
        if not isinstance(error, ConnectionResetError):
            _log.info("log stream ended early", error=str(error))
        # A normal end would look like the end of the log, so abort the connection.
        if request.transport is not None:
            request.transport.abort()
    finally:
        STREAM_BYTES.labels("logs", "upper").inc(copied)
    return response


def log_options(query: MultiMapping[str]) -> dict[str, str]:
    """Validate the log options as the kubelet does, and return those to send to the lower API server.

    Sources: apimachinery's conversion of query parameters, ``ValidatePodLogOptions``, and KEP-3288 for
    `stream`. ``insecureSkipTLSVerifyBackend`` is dropped, because it concerns only the connection from the
    upper API server.

    Returns:
        Parameters for ``pods/log`` of an apiserver, without the container.

    Raises:
        Refusal: 400 if an option cannot be decoded, 422 if it is invalid; the text names the option.
    """
    # As in apimachinery: absent, "false" and "0" are false. Everything else is true, even an empty string.
    options = {name: "true" for name in _FLAGS if query.get(name, "0").lower() not in {"false", "0"}}
    numbers = {name: value for name in _NUMBERS if (value := _number(query, name)) is not None}
    for name, value in numbers.items():
        if value < _NUMBERS[name]:
            raise _invalid(name, f"must be greater than or equal to {_NUMBERS[name]}")
    options |= {name: str(value) for name, value in numbers.items()}
    since = _since_time(query)
    if since is not None:
        if "sinceSeconds" in numbers:
            raise _invalid("sinceSeconds", "at most one of `sinceTime` or `sinceSeconds` may be specified")
        options["sinceTime"] = since
    stream = query.get("stream", "All")
    if stream not in {"All", "Stdout", "Stderr"}:
        raise _invalid("stream", 'supported values: "All", "Stderr", "Stdout"')
    if stream != "All":
        if "tailLines" in numbers:
            raise _invalid("tailLines", "`tailLines` and specific `stream` are mutually exclusive for now")
        options["stream"] = stream
    return options


def _number(query: MultiMapping[str], name: str) -> int | None:
    text = query.get(name)
    if name == "tailLines" and (legacy := query.get("tail")):
        text = None if legacy == "all" else legacy
    if text is None:
        return None
    digits = text[1:] if text[:1] in {"+", "-"} else text
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20 and int(text) in _INT64):
        raise Refusal(400, f'{{"message": "Unable to decode query: {name}: must be a whole number."}}')
    return int(text)


def _since_time(query: MultiMapping[str]) -> str | None:
    text = query.get("sinceTime", "")
    if text in {"", "null"}:
        return None
    try:
        datetime.fromisoformat(text)
        is_time = _RFC3339.fullmatch(text) is not None
    except ValueError:
        is_time = False
    if not is_time:
        raise Refusal(400, '{"message": "Unable to decode query: sinceTime: must be an RFC 3339 time."}')
    return text


def _invalid(field: str, detail: str) -> Refusal:
    text = f"Invalid request: {field}: {detail}."
    return Refusal(422, '{"message": ' + quoted(text) + "}")
