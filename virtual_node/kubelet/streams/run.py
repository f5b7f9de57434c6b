"""``/run``: a command without terminal and stdin, with its output as the response.

Unlike the other streams, its bytes are parsed in this process. It is an exec over WebSocket at the lower API
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
from controller_runtime.errors import ApiError, ConfigError, Unauthorized, error_from_response
from controller_runtime.resources import PODS
from virtual_node.kubelet.base import PodTarget, Refusal, quoted, refusal_from_lower, unreachable
from virtual_node.kubelet.streams.dial import DialError, target_path
from virtual_node.kubelet.streams.routes import StreamHandlers

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
MAX_OUTPUT = 16 * 1024 * 1024
"""Maximum bytes of output, as in container runtimes' synchronous exec (CRI ExecSync)."""

_STDOUT, _STDERR, _ERROR = 1, 2, 3


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
            timeout=aiohttp.ClientTimeout(), middlewares=(_refuse_other_than_upgrade,)
        ) as session:
            try:
                async with asyncio.timeout(self.answer_timeout):
                    socket = await session.ws_connect(
                        url,
                        headers=headers,
                        protocols=PROTOCOLS,
                        proxy=config.proxy_url,
                        ssl=config.ssl if config.ssl is not None else True,
                        server_hostname=config.tls_server_name,
                        timeout=aiohttp.ClientWSTimeout(ws_receive=self.idle_timeout, ws_close=5.0),
                    )
            except TimeoutError:
                raise DialError(f"no answer within {self.answer_timeout:g} s") from None
            except aiohttp.ClientHttpProxyError as error:  # the error's text contains the proxy's password
                raise DialError(f"the proxy answered {error.status} {error.message}") from None
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
    """Raise an error with the lower apiserver's text, which aiohttp's handshake error would drop."""
    response = await handler(request)
    if response.status != 101:
        raise error_from_response(response.status, await response.read(), response.headers)
    return response
