"""HTTP to one API server: connection pool, rate limit, retries, credentials, metrics and mapped errors."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TypedDict, Unpack
from urllib.parse import quote, urlencode

import aiohttp
from yarl import URL

from controller_runtime.auth import impersonation
from controller_runtime.auth.connection import ConnectionConfig
from controller_runtime.auth.proxies import without_password
from controller_runtime.client.connection_pool import ConnectionPools, refusal
from controller_runtime.client.response_limits import ResponseLimits, ResponseReader
from controller_runtime.client.retries import Retry
from controller_runtime.client.transport_metrics import TransportMetrics
from controller_runtime.errors import (
    ConnectionFailed,
    NotConnected,
    ResponseTooLarge,
    error_from_response,
    without_frames,
)
from controller_runtime.util.rate_limiter import TokenBucket

_CONNECT_TIMEOUT = 10.0
_UNREACHABLE = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
NETWORK_ERRORS = (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError)
Params = Mapping[str, str] | Sequence[tuple[str, str]]


class RequestOptions(TypedDict, total=False):
    """Options of ``Transport.receive``."""

    params: Params | None
    body: bytes | None
    headers: Mapping[str, str] | None
    timeout: float | None
    verb: str
    flow: str


class Transport:
    """Sends requests to one API server. ``client.Client`` implements the Kubernetes verbs on it."""

    def __init__(
        self,
        config: ConnectionConfig,
        *,
        bucket: TokenBucket,
        user_agent: str,
        timeout: float,
        cluster: str,
        limits: ResponseLimits,
    ) -> None:
        """Create a transport; connections open on first use.

        Args:
            config: the server and our credentials.
            bucket: the rate limit of all requests, including retries.
            user_agent: our name in the server's audit log.
            timeout: seconds a request may take, including retries but not the wait for the bucket.
            cluster: the cluster's name in metrics.
            limits: the limits of responses.
        """
        self.timeout = timeout
        self._config = config
        self._bucket = bucket
        self._cluster = cluster
        headers = {
            "User-Agent": user_agent,
            "Accept": "application/json",
            # Compression costs both sides more CPU time than the bytes are worth.
            "Accept-Encoding": "identity",
        }
        self._pools = ConnectionPools(config, headers)
        self._default_timeout = _timeout(timeout)
        self._metrics = TransportMetrics(cluster)
        self.reader = ResponseReader(limits, cluster=cluster, server=config.server, metrics=self._metrics)

    @property
    def served_certificate(self) -> bytes | None:
        """Return the server's certificate (DER) from the newest connection; None: no TLS or not connected."""
        return self._pools.served_certificate

    async def close(self) -> None:
        """Close all connections; current requests fail."""
        await self._pools.close()

    async def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> bytes:
        """Send one request and return its complete body, as ``receive`` does.

        The slot of a large body (``ResponseLimits.large_at_once``) is released on return, so decode it before the
        next await.
        """
        async with contextlib.AsyncExitStack() as held:
            return await self._exchange(method, path, held=held, **options)

    @contextlib.asynccontextmanager
    async def receive(
        self, method: str, path: str, **options: Unpack[RequestOptions]
    ) -> AsyncIterator[bytes]:
        """Send one request and yield its complete body; a large body keeps its slot until the block ends."""
        async with contextlib.AsyncExitStack() as held:
            yield await self._exchange(method, path, held=held, **options)

    async def _exchange(
        self,
        method: str,
        path: str,
        *,
        held: contextlib.AsyncExitStack,
        params: Params | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - limits retries, which a caller's timeout could not
        verb: str = "",
        flow: str = "",
    ) -> bytes:
        """Send one request, also repeatedly, and return its complete body.

        Args:
            method: HTTP method.
            path: a path from ``Resource.path``; may have a query.
            held: releases the slot of a large body when it is closed.
            params: more query parameters.
            body: the request body; None: no body.
            headers: more headers.
            timeout: seconds including retries but not the wait for the rate limit; None: the client's.
            verb: name in metrics; empty: the method.
            flow: the flow (resource) in which the request waits for the rate limit.

        Raises:
            ApiError: the error that the server returned.
            ConnectionFailed: there was no answer.
            ResponseTooLarge: the answer exceeds a limit.
            ConfigError: there are no credentials.
        """
        loop = asyncio.get_running_loop()
        verb = verb or method
        url = self._url(path, params)
        limit = self._default_timeout if timeout is None else _timeout(timeout)
        deadline: float | None = None
        retry = Retry(self._config, method, path)
        while True:
            await self._bucket.acquire(flow)
            started = loop.time()
            if deadline is None:
                deadline = started + (self.timeout if timeout is None else timeout)
            else:
                limit = _timeout(max(0.05, deadline - started))
            sent = await retry.credentials()
            try:
                code, answer, answer_headers = await self._send(
                    method,
                    url,
                    body=body,
                    headers=impersonation.merged(sent, headers),
                    timeout=limit,
                    held=held,
                )
            except (asyncio.CancelledError, ResponseTooLarge):
                # A cancellation is usually the timeout of a caller: count it, so that a server that hangs
                # appears in the metrics.
                self._metrics.count(verb, 0)
                raise
            except NETWORK_ERRORS as error:
                await held.aclose()
                self._metrics.count(verb, 0)
                if retry.after_break(without_frames(error)):
                    continue
                raise self.failure(error) from error
            self._metrics.count(verb, code)
            self._metrics.observe(verb, loop.time() - started)
            if code < 300:
                return answer
            await held.aclose()
            await retry.after(error_from_response(code, answer, answer_headers), left=deadline - loop.time())

    @contextlib.asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        read_timeout: float | None = None,
        head_timeout: float | None = None,
        verb: str = "",
        flow: str = "",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield the response while its body arrives.

        Errors while the caller reads the body are aiohttp's, so that the caller can distinguish them from
        errors of its own code. ``failure`` maps them.

        Args:
            method: HTTP method.
            path: a path from ``Resource.path``; may have a query.
            params: more query parameters.
            read_timeout: seconds of silence after which the connection counts as dead; None: no limit.
            head_timeout: seconds until the response must begin; None: only ``read_timeout`` applies, because
                the log of a silent container begins with its first line.
            verb: name in metrics; empty: the method.
            flow: the flow (resource) in which the request waits for the rate limit.

        Raises:
            ApiError: the error that the server returned.
            ConnectionFailed: there was no answer.
            ConfigError: there are no credentials.
        """
        loop = asyncio.get_running_loop()
        verb = verb or method
        url = self._url(path, params)
        limit = aiohttp.ClientTimeout(sock_connect=_CONNECT_TIMEOUT, sock_read=read_timeout)
        retry = Retry(self._config, method, path)
        deadline: float | None = None
        while True:
            await self._bucket.acquire(flow)
            started = loop.time()
            deadline = deadline or started + self.timeout
            sent = await retry.credentials()
            with self._pools.current() as pool:
                try:
                    async with asyncio.timeout(head_timeout):
                        response = await pool.session.request(
                            method,
                            url,
                            headers=sent,
                            timeout=limit,
                            **pool.options,
                        )
                except NETWORK_ERRORS as error:
                    self._metrics.count(verb, 0)
                    if retry.after_break(without_frames(error)):
                        continue
                    raise self.failure(error) from error
                async with response:
                    self._metrics.count(verb, response.status)
                    self._metrics.observe(verb, loop.time() - started)
                    if response.status < 300:
                        yield response
                        return
                    try:
                        async with asyncio.timeout(self.timeout), contextlib.AsyncExitStack() as held:
                            answer = await self.reader.read(response, f"{method} {url.path}", held=held)
                    except NETWORK_ERRORS as error:
                        raise self.failure(error) from error
            left = deadline - loop.time()
            await retry.after(error_from_response(response.status, answer, response.headers), left=left)

    def failure(self, error: BaseException) -> ConnectionFailed:
        """Return NotConnected if no connection was made, ConnectionFailed if it broke later."""
        text = refusal(without_frames(error)) or " ".join(str(error).split())
        if isinstance(error, aiohttp.ClientHttpProxyError):  # aiohttp's text contains the proxy's password
            text = f"the proxy {without_password(self._config.proxy_url or '')} answered {error.status} {error.message}"
        if isinstance(error, TimeoutError):
            text = f"no answer in time ({text})" if text else "no answer in time"
        kind = NotConnected if isinstance(error, _UNREACHABLE) else ConnectionFailed
        return kind(f"{self._config.server}: {text or type(error).__name__}")

    async def _send(
        self,
        method: str,
        url: URL,
        *,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - includes reading the body
        held: contextlib.AsyncExitStack,
    ) -> tuple[int, bytes, Mapping[str, str]]:
        with self._pools.current() as pool:
            async with pool.session.request(
                method,
                url,
                # aiohttp would search its types of payloads for the same class.
                data=aiohttp.BytesPayload(body) if body else None,
                headers=headers,
                timeout=timeout,
                **pool.options,
            ) as response:
                answer = await self.reader.read(response, f"{method} {url.path}", held=held)
                return response.status, answer, response.headers

    def _url(self, path: str, params: Params | None) -> URL:
        text = self._config.server + path
        if params:
            text += ("&" if "?" in path else "?") + urlencode(params, quote_via=quote)
        return URL(text, encoded=True)


def _timeout(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT_TIMEOUT)
