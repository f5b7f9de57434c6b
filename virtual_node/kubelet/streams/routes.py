"""``/exec``, ``/attach`` and ``/portForward``: an upgrade here becomes the same upgrade at the lower API server.

``/run`` is a command without terminal and stdin, with its output as the response. Unlike the other streams, its bytes are
parsed in this process. It is an exec over WebSocket at the lower API
server, with binary messages that begin with their channel number. Version 5 of the protocol only adds closing
of channels to version 4, which a reader does not need.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from controller_runtime.apimachinery.decoding import decode
from controller_runtime.client.connection_pool import Connector
from controller_runtime.client.dialing import RequestHead, ResponseHead
from controller_runtime.client.requests import connect_failure
from controller_runtime.errors import ApiError, ConfigError, Unauthorized, error_from_response
from controller_runtime.log import get_logger
from controller_runtime.resources import PODS
from controller_runtime.serving.connections import Front
from controller_runtime.serving.raw_connection import Connection
from virtual_node.kubelet.auth import UserInfo
from virtual_node.kubelet.base import (
    Backend,
    PodTarget,
    Refusal,
    quoted,
    refusal_from_lower,
    unauthorized,
    unreachable,
)
from virtual_node.kubelet.streams.dial import (
    MAX_ERROR_BODY,
    Answer,
    DialError,
    Query,
    answered_headers,
    attach_query,
    dial,
    exec_query,
    forwarded_headers,
    is_upgrade,
    parse_query,
    port_forward_query,
    read_error_body,
    target_path,
)
from virtual_node.kubelet.streams.limits import STREAM_BYTES, StreamRegistry
from virtual_node.kubelet.streams.splice import Splice

USER = web.RequestKey("USER", UserInfo)
"""Request key of the authenticated user."""

_log = get_logger(component="kubelet")
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
MAX_OUTPUT = 16 * 1024 * 1024
"""Maximum bytes of output, as in container runtimes' synchronous exec (CRI ExecSync)."""

_STDOUT, _STDERR, _ERROR = 1, 2, 3


@dataclass(frozen=True, slots=True)
class StreamHandlers:
    """The base class of all handlers of streams.

    Attributes:
        backend: Finds the pods.
        registry: Counts the streams.
        idle_timeout: Seconds without data from the lower cluster after which a stream ends.
        answer_timeout: Maximum seconds for the lower API server to answer an upgrade, including its
            connection to its own kubelet.
    """

    backend: Backend
    registry: StreamRegistry
    idle_timeout: float
    answer_timeout: float

    def find_pod(
        self, request: web.Request, *, missing: str = "pod does not exist", absent: str = ""
    ) -> PodTarget:
        """Return the target for the pod in a request's path; if the path has a container, the pod must have it.

        Raises:
            Refusal: 404 with the text ``missing`` or ``absent``. The defaults are the kubelet's texts.
        """
        names = request.match_info
        target = self.backend.resolve(names["namespace"], names["pod"], uid=names.get("uid"))
        if target is None:
            raise Refusal(404, missing)
        container = names.get("container")
        if container is not None and container not in target.containers:
            raise Refusal(404, absent or f"container not found ({quoted(container)})")
        return target


class StreamRoutes(StreamHandlers):
    """Handlers of exec, attach and port-forward."""

    async def exec(self, request: web.Request) -> web.StreamResponse:
        """Run a command in a container."""
        container = request.match_info["container"]
        query = exec_query(parse_query(request.rel_url.raw_query_string), container=container)
        return await self._serve(request, self.find_pod(request), "exec", query)

    async def attach(self, request: web.Request) -> web.StreamResponse:
        """Attach to a container's main process."""
        container = request.match_info["container"]
        query = attach_query(request.query, container=container)
        name = f"{request.match_info['pod']}_{request.match_info['namespace']}"
        target = self.find_pod(request, absent=f"container {container} not found in pod {name}")
        return await self._serve(request, target, "attach", query)

    async def port_forward(self, request: web.Request) -> web.StreamResponse:
        """Forward connections to ports of a pod."""
        query = port_forward_query(request.query, request.headers)
        return await self._serve(request, self.find_pod(request), "portforward", query)

    async def _serve(
        self, request: web.Request, target: PodTarget, verb: str, query: Query
    ) -> web.StreamResponse:
        if not is_upgrade(request.headers.getall("Upgrade", [])):
            raise Refusal(400, "Upgrade request required: SPDY/3.1 or websocket")
        if request.can_read_body:
            raise Refusal(400, "an upgrade request has no body")
        with self.registry.track(verb, request):
            answer = await self._ask(request, target, verb, query)
            if answer.head.status != 101:
                return await _relay(answer, target)
            return await self._splice(request, answer, verb, target)

    async def _ask(self, request: web.Request, target: PodTarget, verb: str, query: Query) -> Answer:
        path = PODS.path(namespace=target.namespace, name=target.name, subresource=verb)
        headers = forwarded_headers(request.method, request.headers.items())
        asked = RequestHead(request.method, target_path(path, query), headers)
        config = target.client.config
        try:
            answer = await dial(config, asked, answer_timeout=self.answer_timeout)
            if answer.head.status == 401:
                # The token may have been rotated after its file or plugin was last read.
                answer.connection.transport.abort()
                answer = await dial(config, asked, answer_timeout=self.answer_timeout, refresh=True)
        except (DialError, ConfigError) as error:
            raise unreachable(target.cluster, error) from error
        except ValueError as error:
            raise Refusal(400, str(error)) from error
        return answer

    async def _splice(
        self, request: web.Request, answer: Answer, verb: str, target: PodTarget
    ) -> web.StreamResponse:
        taken = _take_over(request)
        if taken is None:
            answer.connection.transport.abort()
            raise ConnectionResetError("the client is gone")
        upper, early = taken
        head = ResponseHead(101, "Switching Protocols", answered_headers(answer.head.headers))
        splice = Splice(upper, answer.connection, idle_timeout=self.idle_timeout)
        log = _log.bind(
            verb=verb,
            user=request[USER].name,
            cluster=target.cluster,
            pod=f"{target.namespace}/{target.name}",
            container=request.match_info.get("container", ""),
        )
        log.info("stream started")
        started = asyncio.get_running_loop().time()
        upper.transport.write(head.encode())
        splice.start(from_upper=early, from_lower=answer.rest)
        try:
            await splice.wait_closed()
        except asyncio.CancelledError:
            # Only a shutdown cancels this task, because the splice handles the client's disconnect.
            splice.abort()
            await splice.wait_closed()
            raise
        finally:
            STREAM_BYTES.labels(verb, "lower").inc(splice.bytes_to_lower)
            STREAM_BYTES.labels(verb, "upper").inc(splice.bytes_to_upper)
            log.info(
                "stream ended",
                seconds=round(asyncio.get_running_loop().time() - started, 3),
                bytes_to_lower=splice.bytes_to_lower,
                bytes_to_upper=splice.bytes_to_upper,
            )
        return _TakenOver()


async def _relay(answer: Answer, target: PodTarget) -> web.Response:
    """Return the lower API server's error response with its own text, so that kubectl prints it."""
    body = await read_error_body(answer)
    status = answer.head.status
    if status == 401:
        raise unauthorized(target.cluster)
    if not 200 <= status < 600:
        raise Refusal(500, f"cluster {quoted(target.cluster)} answered {status} to an upgrade")
    content_type = answer.head.get("Content-Type", "text/plain")
    response = web.Response(status=status, body=body, headers={"Content-Type": content_type})
    response.force_close()
    return response


def _take_over(request: web.Request) -> tuple[Connection, bytes] | None:
    """Detach the client's connection from aiohttp; return it and the bytes already read, or None if closed.

    When the request is done, aiohttp is notified of the connection's end. Otherwise it would count the
    connection forever.
    """
    handler = request.protocol
    transport = request.transport
    if transport is None or transport.is_closing():
        return None
    handler.keep_alive(False)
    request.task.add_done_callback(lambda _: handler.connection_lost(None))
    protocol = transport.get_protocol()
    if isinstance(protocol, Front):
        return protocol.detach()
    return Connection(transport, transport), b""


class _TakenOver(web.StreamResponse):
    """A response that has already been written to the transport, so that aiohttp writes nothing."""

    def __init__(self) -> None:
        super().__init__(status=101)
        self.force_close()

    async def prepare(self, request: web.BaseRequest) -> None:
        """Write nothing."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Write nothing."""


class RunRoutes(StreamHandlers):
    """Handler of ``/run``."""

    async def run(self, request: web.Request) -> web.StreamResponse:
        """Run ``?cmd=``, split at spaces, and respond with stdout, then stderr."""
        container = request.match_info["container"]
        target = self.find_pod(request)
        command = request.query.get("cmd", "").split(" ")
        with self.registry.track("run", request):
            output = await self._output(target, container, command)
        if output.failure:
            raise Refusal(500, output.failure)
        return web.Response(body=bytes(output.stdout + output.stderr), content_type="application/json")

    async def _output(self, target: PodTarget, container: str, command: list[str]) -> Output:
        """Execute a command in a container of the lower cluster and return its output.

        Raises:
            Refusal: The lower cluster refused the request or could not be reached.
        """
        try:
            try:
                return await self._execute(target, container, command)
            except Unauthorized:
                # The command did not run. The token may have been rotated after its file or plugin was last read.
                return await self._execute(target, container, command, refresh=True)
        except ApiError as error:
            raise refusal_from_lower(error, cluster=target.cluster) from error
        except (aiohttp.ClientError, ConfigError, DialError, OSError) as error:
            raise unreachable(target.cluster, error) from error

    async def _execute(
        self, target: PodTarget, container: str, command: list[str], *, refresh: bool = False
    ) -> Output:
        config = target.client.config
        path = PODS.path(namespace=target.namespace, name=target.name, subresource="exec")
        query = [("container", container), ("stdout", "true"), ("stderr", "true")]
        query += [("command", word) for word in command]
        url = URL(config.server.rstrip("/") + target_path(path, query), encoded=True)
        output, finished = Output(), False
        headers = await config.headers(refresh=refresh)
        async with aiohttp.ClientSession(
            connector=Connector(config),
            timeout=aiohttp.ClientTimeout(),
            auto_decompress=False,  # a few bytes could become gigabytes
            middlewares=(_refuse_other_than_upgrade,),
        ) as session:
            try:
                async with asyncio.timeout(self.answer_timeout):
                    socket = await session.ws_connect(
                        url,
                        headers=headers,
                        protocols=PROTOCOLS,
                        server_hostname=config.tls_server_name,
                        timeout=aiohttp.ClientWSTimeout(ws_receive=self.idle_timeout, ws_close=5.0),
                    )
            except TimeoutError:
                raise DialError(f"no answer within {self.answer_timeout:g} s") from None
            except aiohttp.ClientConnectorError as error:
                raise DialError(connect_failure(error.os_error)) from None
            try:
                async for message in socket:
                    if message.type is aiohttp.WSMsgType.BINARY and message.data:
                        output.feed(message.data, command)
                        finished = finished or message.data[0] == _ERROR
            except TimeoutError:
                raise Refusal(
                    500, f"the command has produced no output for {self.idle_timeout:g} s"
                ) from None
            finally:
                await socket.close()
        if not finished:
            raise Refusal(
                500, f"cluster {quoted(target.cluster)} ended the stream before the command was done"
            )
        return output


@dataclass(slots=True)
class Output:
    """A command's output, and the cause of a failure (empty: no failure)."""

    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    failure: str = ""

    def feed(self, message: bytes, command: list[str]) -> None:
        """Add one message of the channel protocol to the output.

        Raises:
            Refusal: 500 if the output is too long.
        """
        channel, data = message[:1], message[1:]
        if channel == bytes([_STDOUT]):
            self.stdout += data
        elif channel == bytes([_STDERR]):
            self.stderr += data
        elif channel == bytes([_ERROR]):
            self.failure = self._failure(decode(data), command)
        if len(self.stdout) + len(self.stderr) > MAX_OUTPUT:
            raise Refusal(500, f"the output is longer than {MAX_OUTPUT} bytes")

    def _failure(self, status: dict[str, Any], command: list[str]) -> str:
        if status.get("status") == "Success":
            return ""
        causes = (status.get("details") or {}).get("causes") or ()
        for cause in causes:
            if cause.get("reason") == "ExitCode":
                stderr = self.stderr.decode(errors="replace")
                return f"command '{' '.join(command)}' exited with {cause.get('message')}: {stderr}"
        return str(status.get("message") or "the command failed")


async def _refuse_other_than_upgrade(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Raise an error with the lower apiserver's text, which aiohttp's handshake error would drop.

    A hostile server may send a body without end, so only its beginning is read.
    """
    response = await handler(request)
    if response.status == 101:
        return response
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) >= MAX_ERROR_BODY:
            break
    response.close()
    raise error_from_response(response.status, bytes(body[:MAX_ERROR_BODY]), response.headers)
