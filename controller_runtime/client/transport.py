"""HTTP to one API server: connection pool, rate limit, retries, credentials, metrics and mapped errors.

While the API server is unreachable, its watches queue (``Outage``). Without the queue, a thousand watches that retry
every few seconds would try hundreds of connections per second. The queue releases one watch after the other, 5 ms apart.
After eight attempts without an answer the interval doubles with each attempt, up to a second. Any answer resets it. This
rule has three effects:

- While the server is unreachable, one watch at a time tries it, with back-off, whatever the number of waiting
  watches.
- When the server is back, watches return one by one, slower if it answers slowly, with a fraction of the client's
  rate limit.
- When one of several servers behind a load balancer is down, the delay is short: a watch that reaches another server
  releases the next.

Only watches and the lists before them queue. Requests with a deadline, such as writes and leases, are sent at
any time. They do not release watches: a request on a kept connection proves nothing about new connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import random
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from http import HTTPStatus
from typing import Self, Unpack

import aiohttp
from prometheus_client import Counter, Histogram
from yarl import URL

from controller_runtime import errors
from controller_runtime.auth import kubeconfig
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client import requests
from controller_runtime.client.connection_pool import ConnectionPools, refusal
from controller_runtime.client.limits import CacheBudget, ResponseLimits, ResponseReader, bytes_gauge
from controller_runtime.client.requests import CONNECT_TIMEOUT, Params, RequestOptions, Retry, with_query
from controller_runtime.errors import (
    ConnectionFailed,
    ResponseTooLarge,
    ResponseTooSlow,
    without_frames,
)
from controller_runtime.util import event_loop, rate_limiter
from controller_runtime.util.rate_limiter import TokenBucket

_UNREACHABLE = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
NETWORK_ERRORS = (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError)
_REQUESTS = Counter(
    "rest_client_requests_total", "Requests by cluster, verb and HTTP code.", ["cluster", "verb", "code"]
)
_SECONDS = Histogram(
    "rest_client_request_duration_seconds",
    "Seconds from sending a request to the end of the response; for watches and streams to the first byte.",
    ["cluster", "verb"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
_REJECTED = Counter(
    "rest_client_responses_rejected_total",
    "Responses that exceed a limit: a body, one watch event (line), or the number of JSON values of a body.",
    ["cluster", "limit"],
)
bytes_gauge()
# Cached, because ``labels`` takes longer than counting.
_counter = functools.cache(_REQUESTS.labels)
_timer = functools.cache(_SECONDS.labels)
_CODES = frozenset(map(int, HTTPStatus))
"""Other codes of a server share a series, because a hostile server could add one with each of its 900."""
_PACE = 0.005
"""Seconds between releases while the server answers, up to doubled by jitter. With a list and two watches
per release, that is 400 requests per second, below the 500 of a virtual node's rate limit, in which resources also
take turns."""
_AHEAD = 8
"""Releases at interval ``_PACE`` without an answer, before the interval doubles."""
_SLOWEST = 1.0
"""Longest interval in seconds while the server does not answer, up to doubled by jitter."""


class Transport:
    """Sends requests to one API server, with kept-alive connections. ``client.Client`` adds the Kubernetes verbs.

    Attributes:
        config: the cluster and our credentials.
        cluster: the cluster's name in logs and metrics.
        timeout: seconds a request may take, including retries but not the wait for the rate limit.
        bucket: the rate limit of all requests, including retries.
        outage: whether the server is reachable.
        turn: a lock held while a page of a list is decoded or a batch of events is handled. So a server that sends
            data on many connections takes no more time of an event loop pass than on one.
        reader: reads responses within the limits.
        caches: counts the memory of all informer caches of the server.
    """

    def __init__(
        self,
        config: ConnectionConfig,
        *,
        qps: float = 50,
        burst: int = 100,
        user_agent: str = "virtual-node",
        timeout: float = 30.0,
        cluster: str = "",
        limits: ResponseLimits | None = None,
        cache_bytes: int = 0,
    ) -> None:
        """Create a client; connections open on first use.

        Args:
            config: the cluster and our credentials.
            qps: requests per second over time; 0: unlimited. Resources take turns, so a thousand pods to
                create do not delay a lease.
            burst: requests that may be sent at once.
            user_agent: our name in the server's audit log; its part before a slash is the fieldManager of our
                writes.
            timeout: as the attribute.
            cluster: as the attribute.
            limits: of the server's responses; None: the defaults.
            cache_bytes: maximum memory of all informer caches of the server; 0: no limit.
        """
        self.config = config
        self.cluster = cluster
        self.timeout = timeout
        self.bucket = TokenBucket(qps, burst)
        self.outage = Outage()
        self.turn = asyncio.Lock()
        self.caches = CacheBudget(cache_bytes, cluster=cluster)
        self.field_manager = requests.field_manager(user_agent)
        self._headers = requests.headers_of(user_agent)
        self._pools = ConnectionPools(config, self._headers)
        self._default_timeout = _timeout(timeout)
        self._metrics = TransportMetrics(cluster)
        self._limits = limits or ResponseLimits()
        self.reader = self._response_reader()
        self._on_reconnect: list[Callable[[], None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def served_certificate(self) -> bytes | None:
        """Return the server's certificate (DER) from the newest connection; None: no TLS or not connected."""
        return self._pools.served_certificate

    def on_reconnect(self, reconnected: Callable[[], None]) -> None:
        """Call a function whenever ``reconnect`` has replaced the connection, which may lead to another server."""
        self._on_reconnect.append(reconnected)

    async def reconnect(self, config: ConnectionConfig) -> None:
        """Use another server or other credentials for later requests; current requests fail."""
        # Together, because a request must not send the credentials of one server to the other.
        former, pools = self.config, self._pools
        self.config, self._pools = config, ConnectionPools(config, self._headers)
        self.reader = self._response_reader()
        for reconnected in self._on_reconnect:
            reconnected()
        await pools.close()
        await former.close()

    def _response_reader(self) -> ResponseReader:
        return ResponseReader(
            self._limits, cluster=self.cluster, server=self.config.server, rejected=self._metrics.rejected
        )

    async def close(self) -> None:
        """Close all connections; current and later requests fail."""
        await self._pools.close()

    @contextlib.asynccontextmanager
    async def receive(
        self, method: str, path: str, **options: Unpack[RequestOptions]
    ) -> AsyncIterator[bytes]:
        """Send one request, with retries, and yield the complete body of the response.

        A large body keeps its slot until the block ends.

        Args:
            method: HTTP method.
            path: a path from ``Resource.path``; may have a query.
            options: see ``RequestOptions``.

        Raises:
            ApiError: the error that the server returned.
            ConnectionFailed: there was no answer.
            RequestTooLarge: the body is larger than API servers accept; it was not sent.
            ResponseTooLarge: the answer exceeds a limit.
            ConfigError: there are no credentials.
        """
        async with contextlib.AsyncExitStack() as held:
            yield await self._exchange(method, path, options, held)

    async def _exchange(
        self, method: str, path: str, options: RequestOptions, held: contextlib.AsyncExitStack
    ) -> bytes:
        verb = options.get("verb") or method
        url = self._url(path, options.get("params"))
        body, timeout = options.get("body"), options.get("timeout")
        requests.check_size(method, url.path, body)
        limit = self._default_timeout if timeout is None else _timeout(timeout)
        deadline: float | None = None
        retry, pools = Retry(self.config, method, path), self._pools
        while True:
            await self.bucket.acquire(options.get("flow", ""))
            started = event_loop.now()
            if deadline is None:
                deadline = started + (self.timeout if timeout is None else timeout)
            else:
                limit = _timeout(max(0.05, deadline - started))
            sent = await retry.credentials()
            try:
                with pools.current() as pool:
                    async with pool.session.request(
                        method,
                        url,
                        # aiohttp would search its types of payloads for the same class.
                        data=aiohttp.BytesPayload(body) if body else None,
                        headers=kubeconfig.merged(sent, options.get("headers")),
                        timeout=limit,
                        **pool.options,
                    ) as response:
                        answer = await self._read_body(response, f"{method} {url.path}", held=held)
            except (asyncio.CancelledError, ResponseTooLarge, ResponseTooSlow):
                # A cancellation is usually the timeout of a caller: count it, so that a server that hangs
                # appears in the metrics.
                self._metrics.count(verb, 0)
                raise
            except NETWORK_ERRORS as error:
                await held.aclose()
                self._broke(verb, retry, error)
                continue
            self._metrics.count(verb, response.status)
            self._metrics.observe(verb, event_loop.now() - started)
            if response.status < 300:
                return answer
            await held.aclose()
            left = deadline - event_loop.now()
            await retry.after(
                errors.error_from_response(response.status, answer, response.headers), left=left
            )

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
            params: as in ``RequestOptions``.
            read_timeout: seconds of silence after which the connection counts as dead; None: no limit.
            head_timeout: seconds until the response must begin; None: only ``read_timeout`` applies, because
                the log of a silent container begins with its first line.
            verb: as in ``RequestOptions``.
            flow: as in ``RequestOptions``.

        Raises:
            ApiError: the error that the server returned.
            ConnectionFailed: there was no answer.
            ConfigError: there are no credentials.
        """
        verb = verb or method
        url = self._url(path, params)
        limit = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT, sock_read=read_timeout)
        retry, pools = Retry(self.config, method, path), self._pools
        deadline: float | None = None
        while True:
            await self.bucket.acquire(flow)
            started = event_loop.now()
            deadline = deadline or started + self.timeout
            sent = await retry.credentials()
            with pools.current() as pool:
                try:
                    async with asyncio.timeout(head_timeout):
                        response = await pool.session.request(
                            method, url, headers=sent, timeout=limit, **pool.options
                        )
                except NETWORK_ERRORS as error:
                    self._broke(verb, retry, error)
                    continue
                async with response:
                    self._metrics.count(verb, response.status)
                    self._metrics.observe(verb, event_loop.now() - started)
                    if response.status < 300:
                        yield response
                        return
                    try:
                        async with asyncio.timeout(self.timeout), contextlib.AsyncExitStack() as held:
                            answer = await self._read_body(response, f"{method} {url.path}", held=held)
                    except NETWORK_ERRORS as error:
                        raise self.failure(error) from error
            left = deadline - event_loop.now()
            await retry.after(
                errors.error_from_response(response.status, answer, response.headers), left=left
            )

    async def _read_body(
        self, response: aiohttp.ClientResponse, what: str, *, held: contextlib.AsyncExitStack
    ) -> bytes:
        try:
            return await self.reader.read(response, partial(next_chunk, response), what, held=held)
        except TimeoutError as error:
            if response.status >= 300:
                raise
            raise requests.too_slow(self.config, what) from error

    def _broke(self, verb: str, retry: Retry, error: Exception) -> None:
        """Count a request without an answer; raise the error for it unless it may be sent again."""
        self._metrics.count(verb, 0)
        if not retry.after_break(is_disconnect=_is_disconnect(without_frames(error))):
            raise self.failure(error) from error

    def failure(self, error: BaseException) -> ConnectionFailed:
        """Return NotConnected if no connection was made, ConnectionFailed if it broke later."""
        text = refusal(without_frames(error)) or " ".join(str(error).split())
        if isinstance(error, TimeoutError):
            text = f"no answer in time ({text})" if text else "no answer in time"
        kind = errors.NotConnected if isinstance(error, _UNREACHABLE) else ConnectionFailed
        return kind(f"{self.config.server}: {text or type(error).__name__}")

    def _url(self, path: str, params: Params | None) -> URL:
        return URL(self.config.server + with_query(path, params), encoded=True)


def _is_disconnect(error: Exception) -> bool:
    """Report whether a connection broke that had been made."""
    return isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError) and not isinstance(
        error, aiohttp.ClientConnectorError
    )


async def next_chunk(response: aiohttp.ClientResponse) -> bytes:
    """Return the next received bytes of a body; empty at its end.

    Raises:
        aiohttp.ClientError: the connection broke.
    """
    try:
        return await response.content.readany()
    except aiohttp.ClientError as error:
        # The stream keeps its exception. The traceback would keep the frames with the stream and its
        # bytes until a garbage collection: 200 MiB with a hostile server.
        raise copy.copy(error) from without_frames(error)
    except RuntimeError as error:  # raised by aiohttp if the connection is lost between two of its steps
        raise response.content.exception() or aiohttp.ClientConnectionError(str(error)) from error


def _timeout(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_TIMEOUT)


class TransportMetrics:
    """Counts the requests of one client."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    def count(self, verb: str, code: int) -> None:
        """Count a request by its HTTP status; 0: no answer."""
        name = str(code) if code in _CODES else "other" if code else "<error>"
        _counter(self._cluster, verb, name).inc()

    def observe(self, verb: str, seconds: float) -> None:
        """Record the duration of a request."""
        _timer(self._cluster, verb).observe(seconds)

    def rejected(self, limit: str) -> None:
        """Count a response that exceeds a limit: ``body``, ``line``, ``values`` or ``depth``."""
        _REJECTED.labels(self._cluster, limit).inc()


class Outage:
    """Whether one API server is reachable, and the queue of watches that wait for it.

    Attributes:
        error: why the server is unreachable: a watch broke or got no answer, so new watches queue. None while the server
            answers.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._line: deque[asyncio.Future[None]] = deque()
        self._minor: deque[asyncio.Future[None]] = deque()
        self._tries = 0
        """Releases since the last answer."""
        self._timer: asyncio.TimerHandle | None = None
        self._on_return: list[Callable[[], object]] = []

    def on_return(self, call: Callable[[], object]) -> None:
        """Call a function each time that an unreachable server answers again."""
        self._on_return.append(call)

    async def turn(self, *, is_minor: bool) -> None:
        """Wait for the watch's turn; return at once while the server answers and the queue is empty.

        Args:
            is_minor: whether this is one of many small watches, such as of a single object. Released only if
                no others wait.
        """
        if self.error is None and self._timer is None:
            return
        waiter = asyncio.get_running_loop().create_future()
        (self._minor if is_minor else self._line).append(waiter)
        self._arm()
        await waiter

    def answered(self) -> None:
        """Mark the server reachable because a watch or its list got an answer; a refusal counts, too."""
        if self.error is None and not self._tries:
            return
        was_unreachable = self.error is not None
        self.error = None
        self._tries = 0
        if self._timer is not None:
            self._arm()
        if was_unreachable:
            for call in self._on_return:
                call()

    def _arm(self) -> None:
        """Schedule the next release after the current interval, unless an earlier one is scheduled."""
        loop = asyncio.get_running_loop()
        pause = rate_limiter.exponential(max(0, self._tries - _AHEAD), base=_PACE, maximum=_SLOWEST)
        due = loop.time() + pause * (1 + random.random())  # noqa: S311 - jitter
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = loop.call_at(due, self._start_next)

    def _start_next(self) -> None:
        self._timer = None
        while line := self._line or self._minor:
            waiter = line.popleft()
            if not waiter.done():  # cancelled while it waited
                waiter.set_result(None)
                self._tries += 1
                break
        if self._line or self._minor:
            self._arm()
