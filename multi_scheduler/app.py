"""The process: creates agents and the server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from functools import partial

from clusterset.model import names
from controller_runtime import log
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.events import EventRecorder
from controller_runtime.objects import Object
from controller_runtime.process import lifecycle
from controller_runtime.process.listening import is_loopback
from controller_runtime.serving.health import Check
from controller_runtime.serving.server import HealthServer
from controller_runtime.tls.reloader import CertificateReloader
from multi_scheduler import config, safe_scheduler, shared
from multi_scheduler.bound_pods import BoundPods, bound_pods, caught_up
from multi_scheduler.certificates import ExtenderCertificates
from multi_scheduler.directory import NodeDirectory
from multi_scheduler.extender.active import ActiveReplica, lease_candidate
from multi_scheduler.extender.extender import Extender, Weighted
from multi_scheduler.extender.server import ExtenderServer
from multi_scheduler.program import PROGRAM, SchedulerSettings
from multi_scheduler.safe_scheduler import SafeScheduler, read_settings
from multi_scheduler.shared import LowerClients, Shared

_log = log.get_logger(component=PROGRAM.name)


async def run(options: SchedulerSettings) -> None:
    """Serve until cancelled, for the lower clusters of the configuration and of ClusterProfiles.

    Raises:
        ConfigError: a setting or file is wrong and the user must correct it.
    """
    await config.run(
        options, PROGRAM.name, lambda given: shared.run(given, PROGRAM.name, partial(_serve, given))
    )


async def _serve(options: SchedulerSettings, upper: Client, lower: LowerClients) -> None:
    config = options.config
    async with contextlib.AsyncExitStack() as stack:
        bound = bound_pods(upper)
        recorder = EventRecorder(upper, component=PROGRAM.name, host=socket.gethostname())
        directory = NodeDirectory(upper, config)
        shared = Shared(config, upper, bound, recorder, directory=directory)
        lower.inform(directory)
        lower.inform(shared)
        agents = [Weighted(agent.name, shared.agent(agent), agent.weight) for agent in config.agents]
        certificates = _certificates(options, upper)
        extender = Extender(
            agents,
            directory,
            upper=upper,
            scores_real_nodes=config.upper_usage is not None,
            bound_to=BoundPods(bound).node,
        )
        bound.add_handler(on_add=lambda pod, _initial: _record_event(pod, extender, recorder))
        active = _active(options, upper, bound)
        server = _server(options, extender, certificates, active)
        if options.safe_scheduler_routes:
            safe_scheduler.add_routes(
                server,
                SafeScheduler(read_settings(os.environ)),
                extender.alone(),
                directory,
                bind=server.bind if options.bind else None,
            )
        checks: dict[str, Check] = {
            **({"certificates": certificates.unready} if certificates is not None else {}),
            "nodes": directory.unready,
            "view": shared.unready,
            **{weighted.name: weighted.agent.unready for weighted in agents},
        }
        for name, check in checks.items():
            server.health.add(name, check)
        if options.health_addr:
            await stack.enter_async_context(HealthServer(options.health_addr, checks=checks))
        await server.start()
        stack.push_async_callback(server.stop)
        _log.info(
            "serving",
            port=server.port,
            clusters=sorted(lower.clients),
            agents=[agent.name for agent in agents],
        )
        await stack.enter_async_context(lifecycle.collecting_garbage())
        async with asyncio.TaskGroup() as group:
            if certificates is not None:
                group.create_task(certificates.run(), name="certificates")
            if active is not None:
                group.create_task(active.run(), name="active replica")
            group.create_task(directory.run(), name="nodes")
            group.create_task(bound.run())
            group.create_task(recorder.run(), name="events")
            for weighted in agents:
                group.create_task(weighted.agent.run(), name=weighted.name)
            group.create_task(shared.run(), name="view")


def _certificates(options: SchedulerSettings, upper: Client) -> ExtenderCertificates | None:
    if not options.secret_name:
        return None
    return ExtenderCertificates(
        client=upper,
        namespace=options.namespace,
        secret=options.secret_name,
        client_secret=options.client_secret_name,
        hosts=options.certificate_hosts,
    )


def _active(options: SchedulerSettings, upper: Client, bound: Informer) -> ActiveReplica | None:
    if not options.active_lease:
        return None
    return ActiveReplica(
        lease_candidate(upper, options.namespace, options.active_lease),
        catch_up=partial(caught_up, upper, bound),
        binds=options.bind,
    )


def _server(
    options: SchedulerSettings,
    extender: Extender,
    certificates: ExtenderCertificates | None,
    active: ActiveReplica | None,
) -> ExtenderServer:
    tls = certificates.tls if certificates is not None else None
    if options.tlscert:
        tls = CertificateReloader(options.tlscert, options.tlskey, client_ca=options.client_ca)
    if (tls is None or not tls.verifies_clients) and not is_loopback(options.address):
        _log.warning(
            "the extender authenticates no caller, so every client that reaches its port can reserve all room",
            address=options.address or "*",
            next="give --secret-name, or --tlscert, --tlskey and --client-ca, or --address=127.0.0.1",
        )
    return ExtenderServer(
        options.address,
        options.port,
        tls=tls,
        extender=extender,
        active=active,
        serve_bind=options.bind,
        metrics=not options.health_addr,
        max_body_bytes=options.max_body_bytes,
        client_names=options.client_names,
    )


def _record_event(pod: Object, extender: Extender, recorder: EventRecorder) -> None:
    """Write an Event with the agents' answers about a newly bound pod, if there are any."""
    if message := extender.settle(pod.uid, pod.node_name):
        recorder.event(pod, "Normal", names.EVENT_SCORED, message)
