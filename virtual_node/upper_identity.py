"""The identity of the upper cluster: the UID of namespace kube-system, which is unique, stable and readable."""

from __future__ import annotations

import asyncio

import structlog

from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError, Forbidden, Unauthorized
from virtual_node.cluster.lower_cluster import COMPONENT


async def read(upper: Client, *, startup_timeout: float) -> str:
    """Wait until the upper cluster answers, and return its identity.

    Args:
        upper: client of the upper cluster.
        startup_timeout: maximum seconds to wait; 0: no limit.

    Raises:
        ConfigError: the cluster does not answer in time, or refuses the read.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + startup_timeout if startup_timeout else None
    delay = 0.5
    log = structlog.get_logger(component=COMPONENT)
    while True:
        try:
            namespace = await upper.get(resources.NAMESPACES, "kube-system")
            return str(namespace["metadata"]["uid"])
        except (Forbidden, Unauthorized) as error:
            raise ConfigError(
                f"the upper cluster does not let us read namespace kube-system ({error}); "
                "grant it, or give --cluster-id"
            ) from None
        except ApiError as error:
            if deadline is not None and loop.time() + delay > deadline:
                raise ConfigError(
                    f"the upper cluster did not answer within --startup-timeout: {error}"
                ) from None
            log.warning("upper cluster does not answer yet", error=str(error), retry_in=delay)
            await asyncio.sleep(delay)
            delay = min(delay * 2, 10.0)
