"""The webhook's process: caches, certificates and the server."""

from __future__ import annotations

import asyncio
import contextlib

from controller_runtime import log
from controller_runtime.client.client import Client, connected
from controller_runtime.leaderelection import Election
from controller_runtime.process import lifecycle
from controller_runtime.serving.server import HealthServer
from controller_runtime.tls.reloader import CertificateReloader
from webhook import manifests
from webhook.certificates import ClientConfig, Registrar, WebhookCertificates
from webhook.program import PROGRAM, WebhookSettings
from webhook.server import WebhookServer
from webhook.state import State

_log = log.get_logger(component=PROGRAM.name)


async def run(options: WebhookSettings) -> None:
    """Serve until cancelled; without ``--tlscert`` also create and renew certificates.

    Raises:
        ConfigError: the kubeconfig, a flag or a certificate file is wrong.
    """
    path = "" if options.incluster else options.kubeconfig
    upper = connected(path, server=options.master, cluster="upper", user_agent=PROGRAM.name)
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(upper)
        state = State(
            client,
            options.surroundings,
            freeze_namespace=options.freeze_namespace,
            freeze_period=options.freeze_period,
        )
        group = await stack.enter_async_context(asyncio.TaskGroup())
        group.create_task(state.run(), name="caches")
        if not options.tlscert:
            certificates = _manage(options, client, group)
            tls, unready = certificates.tls, certificates.unready
        else:
            tls = CertificateReloader(options.tlscert, options.tlskey, client_ca=options.client_ca)
            unready = _always_ready
        server = WebhookServer(options.address, options.port, tls=tls, knowledge=state)
        checks = {"caches": state.unready, "certificate": unready}
        for name, check in checks.items():
            server.health.add(name, check)
        if options.health_addr:
            await stack.enter_async_context(HealthServer(options.health_addr, checks=checks))
        await server.start()
        stack.push_async_callback(server.stop)
        _log.info("serving", port=server.port, hosts=list(options.certificate_hosts))
        await stack.enter_async_context(lifecycle.collecting_garbage())
        try:
            await asyncio.Event().wait()
        finally:
            await server.announce_shutdown(options.shutdown_delay_duration)


def _manage(options: WebhookSettings, client: Client, group: asyncio.TaskGroup) -> WebhookCertificates:
    """Start the tasks that serve the Secret's certificate, renew it and, as leader, announce its CA."""
    registrar = Registrar(client, name=options.configuration_name, client_config=_client_config(options))
    certificates = WebhookCertificates(
        client=client,
        registrar=registrar,
        namespace=options.namespace,
        secret=options.secret_name,
        hosts=options.certificate_hosts,
    )
    for informer in registrar.informers:
        group.create_task(informer.run(), name=informer.name)
    group.create_task(certificates.run(), name="certificates")
    election = Election(enabled=options.leader_elect)
    announcing = election.lead(client, certificates.lead, name=PROGRAM.name, namespace=options.namespace)
    group.create_task(announcing, name="announced CA")
    return certificates


def _client_config(options: WebhookSettings) -> ClientConfig | None:
    if not options.register:
        return None
    if options.url:
        return lambda path, bundle: manifests.by_url(options.url, path, bundle)
    return lambda path, bundle: manifests.by_service(options.namespace, options.service_name, path, bundle)


def _always_ready() -> None:
    """Report ready, because certificate files are served from the start and the user is responsible for their CA."""
