"""Serves the probes, the metrics and the page of a virtual-node process, as configured."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from controller_runtime.client.client import Client
from controller_runtime.serving.server import HealthServer
from virtual_node.config.types import Config
from virtual_node.process_health import ProcessHealth
from virtual_node.process_state import ProcessState
from virtual_node.workers import families
from virtual_node.workers.worker import Worker


@contextlib.asynccontextmanager
async def serving(
    state: ProcessState, config: Config, *, upper: Client, worker: Worker | None
) -> AsyncIterator[ProcessHealth | None]:
    """Serve until the context ends; yield the evaluator of health, or None if nothing is configured to serve.

    Args:
        state: of the process.
        config: the configuration at start; the addresses do not change later.
        upper: client of the upper cluster.
        worker: this process as one of ``--workers``; None: it is the only process.

    Raises:
        ConfigError: an address cannot be used.
    """
    async with contextlib.AsyncExitStack() as stack:
        if config.metrics_address:
            server = HealthServer(
                config.metrics_address,
                checks=state.checks(),
                setting="--metrics-addr (metricsAddress)",
                listener=worker.socket() if worker else None,
            )
            if worker:
                server.add_route("GET", families.PATH, families.serve)
            await stack.enter_async_context(server)
        if not config.web_address and not config.metrics_address:
            yield None
            return
        election = config.leader_election
        health = ProcessHealth(
            state,
            upper=upper,
            replicas_in=election.namespace if election.enabled else "",
            history=config.inspection_history,
        )
        if config.web_address:
            from virtual_node.web.server import page  # noqa: PLC0415 - loaded only if the page is served

            number = worker.number if worker else 1
            await stack.enter_async_context(page(state, config, upper=upper, health=health, worker=number))
        yield health
