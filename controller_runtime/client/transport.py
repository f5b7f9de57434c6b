"""HTTP to one apiserver: pooled connections, pacing, retries, credentials, metrics, and errors mapped to ``errors``."""

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
from controller_runtime.auth.connection import ClusterConfig
from controller_runtime.auth.proxies import without_password
from controller_runtime.client.connection_pool import ConnectionPool, refusal
from controller_runtime.client.response_handler import CpuMeter
from controller_runtime.client.response_limits import Limits, ResponseReader
from controller_runtime.client.retries import Retry
from controller_runtime.client.transport_metrics import TransportMetrics
from controller_runtime.errors import ConnectionFailed, NotConnected, ResponseTooLarge, error_from_response
from controller_runtime.util.rate_limiter import TokenBucket

_CONNECT_TIMEOUT = 10.0
_UNREACHABLE = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
NETWORK_ERRORS = (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError)
Params = Mapping[str, str] | Sequence[tuple[str, str]]


class RequestOptions(TypedDict, total=False):
    """See ``Transport.receive``."""

    params: Params | None
    body: bytes | None
    headers: Mapping[str, str] | None
    timeout: float | None
    verb: str
    flow: str


class Transport:
    """Sends requests to one apiserver; ``client.Client`` gives them their Kubernetes meaning."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        bucket: TokenBucket,
        user_agent: str,
        timeout: float,
        cluster: str,
        limits: Limits,
    ) -> None:
        """Set up; connections open on first use.

        Args:
            config: where to, and with which credentials.
            bucket: paces all requests, repeated ones included.
            user_agent: names us in the server's audit log.
            timeout: seconds a request may take, retries included, waiting for the bucket left out.
            cluster: the cluster's name in metrics.
            limits: of responses.
        """
        self.timeout = timeout
        self._config = config
        self._bucket = bucket
        self._cluster = cluster
        self._headers = {
            "User-Agent": user_agent,
            "Accept": "application/json",
            # Compressing on the way costs both sides more CPU than the bytes are worth.
            "Accept-Encoding": "identity",
        }
        self._pools: list[ConnectionPool] = []
        """The last one is in use; those before it finish what they began."""
        self._meter = CpuMeter()
        self._closed = False
        self._default_timeout = _timeout(timeout)
        self._metrics = TransportMetrics(cluster)
        self.reader = ResponseReader(limits, cluster=cluster, server=config.server, metrics=self._metrics)

    @property
    def served_certificate(self) -> bytes | None:
        """The server's certificate (DER), from the connection made last; None: no TLS, or no connection yet."""
        return self._pools[-1].served_certificate if self._pools else None

    async def close(self) -> None:
        """Close all connections; requests under way fail."""
        self._closed = True
        pools, self._pools = self._pools, []
        for pool in pools:
            await pool.close()

    async def request(self, method: str, path: str, **options: Unpack[RequestOptions]) -> bytes:
        """Send one request and read its whole answer, as ``receive`` does.

        A large body counts as received until this returns: decode it before you await anything.
        """
        async with self.receive(method, path, **options) as body:
            return body

    @contextlib.asynccontextmanager
    async def receive(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - bounds retries, which a caller's timeout could not
        verb: str = "",
        flow: str = "",
    ) -> AsyncIterator[bytes]:
        """Send one request and read its whole answer; a large one counts as held until the block ends.

        Args:
            method: HTTP method.
            path: as ``Resource.path`` makes it; may have a query.
            params: further query.
            body: to send.
            headers: further headers.
            timeout: seconds, retries included, waiting for the rate limit left out; None: the client's.
            verb: name in metrics; the method by default.
            flow: whom the request is for, where requests must wait for the rate limit.

        Raises:
            ApiError: by the answer; ConnectionFailed when there is none, ResponseTooLarge when it exceeds a limit.
            ConfigError: there are no credentials to send.
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
            async with contextlib.AsyncExitStack() as held:
                try:
                    code, answer, answer_headers = await self._send(
                        method,
                        url,
                        body=body,
                        headers=impersonation.merged(sent, headers),
                        timeout=limit,
                        held=held,
                    )
                except asyncio.CancelledError:
                    # Mostly a caller whose patience has ended: a server that hangs shows in its metrics, too.
                    self._metrics.count(verb, 0)
                    raise
                except NETWORK_ERRORS as error:
                    self._metrics.count(verb, 0)
                    if retry.after_break(error):
                        continue
                    raise self.failure(error) from error
                except ResponseTooLarge:
                    self._metrics.count(verb, 0)
                    raise
                self._metrics.count(verb, code)
                self._metrics.observe(verb, loop.time() - started)
                if code < 300:
                    yield answer
                    return
            await retry.after(error_from_response(code, answer, answer_headers), left=deadline - loop.time())

    @contextlib.asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        headers: Mapping[str, str] | None = None,
        read_timeout: float | None = None,
        head_timeout: float | None = None,
        verb: str = "",
        flow: str = "",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and hand over the answer while it arrives; an error answer raises instead.

        What breaks while the caller reads the answer's content is aiohttp's error, for the caller to tell from
        errors of its own; ``failure`` maps it.

        Args:
            method: HTTP method.
            path: as ``Resource.path`` makes it; may have a query.
            params: further query.
            headers: further headers.
            read_timeout: seconds of silence after which the connection counts as dead; None: never.
            head_timeout: seconds until the answer must begin; None: no other bound than ``read_timeout``, because
                the log of a silent container begins with its first line.
            verb: name in metrics; the method by default.
            flow: whom the request is for, where requests must wait for the rate limit.

        Raises:
            ApiError: by the answer; ConnectionFailed when there is none.
            ConfigError: there are no credentials to send.
        """
        loop = asyncio.get_running_loop()
        verb = verb or method
        url = self._url(path, params)
        limit = aiohttp.ClientTimeout(
            total=None, connect=None, sock_connect=_CONNECT_TIMEOUT, sock_read=read_timeout
        )
        retry = Retry(self._config, method, path)
        deadline: float | None = None
        while True:
            await self._bucket.acquire(flow)
            started = loop.time()
            deadline = deadline or started + self.timeout
            sent = await retry.credentials()
            with self._pool() as pool:
                try:
                    async with asyncio.timeout(head_timeout):
                        response = await pool.session.request(
                            method,
                            url,
                            headers=impersonation.merged(sent, headers),
                            timeout=limit,
                            **pool.options,
                        )
                except NETWORK_ERRORS as error:
                    self._metrics.count(verb, 0)
                    if retry.after_break(error):
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
            failure = error_from_response(response.status, answer, response.headers)
            await retry.after(failure, left=deadline - loop.time())

    def failure(self, error: BaseException) -> ConnectionFailed:
        """What a broken connection is called above this module."""
        text = refusal(error) or " ".join(str(error).split())
        if isinstance(error, aiohttp.ClientHttpProxyError):  # its own text has the proxy's password
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
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - covers the parts of a request, too
        held: contextlib.AsyncExitStack,
    ) -> tuple[int, bytes, Mapping[str, str]]:
        with self._pool() as pool:
            async with pool.session.request(
                method, url, data=body, headers=headers, timeout=timeout, **pool.options
            ) as response:
                return (
                    response.status,
                    await self.reader.read(response, f"{method} {url.path}", held=held),
                    response.headers,
                )

    def _pool(self) -> ConnectionPool:
        if self._closed:
            raise ConnectionFailed(f"{self._config.server}: the client is closed")
        if not self._pools or self._pools[-1].context is not self._config.ssl:
            # The TLS context changes with the client certificate: new connections for the new identity.
            for pool in self._pools:
                pool.retire()
            self._pools = [pool for pool in self._pools if not pool.closed]
            self._pools.append(ConnectionPool(self._config, self._headers, meter=self._meter))
        return self._pools[-1]

    def _url(self, path: str, params: Params | None) -> URL:
        text = self._config.server + path
        if params:
            text += ("&" if "?" in path else "?") + urlencode(params, quote_via=quote)
        return URL(text, encoded=True)


def _timeout(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT_TIMEOUT)
