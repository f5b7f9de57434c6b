"""Lists names from a cluster or a kubeconfig for completion, with a short timeout and without output.

A cluster that does not answer, or that refuses the request, yields no names, so that TAB does not block.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import shlex
import threading
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.apimachinery.decoding import decode
from controller_runtime.auth import kubeconfig_file
from controller_runtime.client.collection import METADATA_ONLY
from controller_runtime.client.verbs import Verbs
from controller_runtime.resources import Resource
from virtual_node.commands.common import connect
from virtual_node.commands.completion.command import Candidate, Names, Question
from virtual_node.examine.reader import VIRTUAL_NODES

LIMIT = 3.0
"""Seconds after which names that were not found yet are left out."""
_SLACK = 0.5
"""Seconds for cancelled requests to end; a request that takes longer is not waited for."""
_MOST = 500


def ask(question: Question) -> tuple[list[Candidate], bool]:
    """Return the matching names, and whether all requests have ended.

    Requests that have not ended, such as a hanging resolver, cannot be interrupted. They continue in the
    background and would keep the interpreter from exiting.

    Args:
        question: which names to list.
    """
    found: list[Candidate] = []

    async def asking() -> None:
        async with asyncio.timeout(LIMIT):
            await _Asking(question, found).run()

    def run() -> None:
        with contextlib.suppress(Exception):
            asyncio.run(asking())

    # Other output must not be mixed with the candidates.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(LIMIT + _SLACK)
    used = set(question.given.get(question.dest, ()))
    fitting = [each for each in found if each.value.startswith(question.prefix) and each.value not in used]
    return fitting, not thread.is_alive()


class _Asking:
    """Collects candidates in ``found``, in the order of their responses."""

    def __init__(self, question: Question, found: list[Candidate]) -> None:
        self._question = question
        self._found = found

    async def run(self) -> None:
        """Collect the candidates of the question."""
        question = self._question
        if question.names is Names.CONTEXTS:
            file = self._file(question.dest.replace("context", "kubeconfig"))
            self._add(kubeconfig_file.contexts(kubeconfig_file.places(file)))
            return
        async with connect.briefly(
            self._file("kubeconfig"),
            agent="virtual-node-completion",
            context=self._word("context"),
            timeout=LIMIT,
            in_cluster=True,
        ) as client:
            match question.names:
                case Names.NAMESPACES:
                    await self._objects(client, resources.NAMESPACES)
                case Names.TARGETS:
                    kind, _, name = question.prefix.partition("/")
                    await self._targets(client, kind, name, head=f"{kind}/")
                case Names.OBJECTS if "/" not in self._word("kind"):
                    await self._targets(client, self._word("kind"), question.prefix)
                case Names.VIRTUAL_NODES:
                    await self._nodes(client)
                case Names.LOWER_CLUSTERS:
                    self._add(await _clusters(client))
                case Names.CLUSTERS_AND_NODES:
                    self._add(await _clusters(client))
                    await self._nodes(client)
                case Names.LABELS:
                    self._add(f"{names.LABEL_LOWER_CLUSTER}={cluster}" for cluster in await _clusters(client))

    async def _targets(self, client: Verbs, kind: str, typed: str, *, head: str = "") -> None:
        """Collect what ``diagnose`` takes after a type: ``NAME`` and ``NAMESPACE/NAME``."""
        from virtual_node.commands.parsers import KINDS, full  # noqa: PLC0415 - other names need no parser

        resource = KINDS[full(kind)]
        if resource is resources.NODES:
            await self._nodes(client, head=head)
            return
        namespace, slash, _ = typed.partition("/")
        if slash:
            await self._objects(client, resource, namespace=namespace, head=f"{head}{namespace}/")
            return
        given = self._word("namespace")
        here = given or client.config.namespace or "default"
        reading: list[Coroutine[Any, Any, None]] = [
            self._objects(client, resource, namespace=here, head=head)
        ]
        if not given:
            reading.append(self._objects(client, resources.NAMESPACES, head=head, tail="/"))
        await asyncio.gather(*reading, return_exceptions=True)

    async def _nodes(self, client: Verbs, *, head: str = "") -> None:
        for metadata in await _list(client, resources.NODES, selector=VIRTUAL_NODES):
            cluster = (metadata.get("labels") or {}).get(names.LABEL_LOWER_CLUSTER, "")
            self._found.append(Candidate(head + metadata["name"], cluster and f"lower cluster {cluster}"))

    async def _objects(
        self,
        client: Verbs,
        resource: Resource,
        *,
        namespace: str | None = None,
        head: str = "",
        tail: str = "",
    ) -> None:
        listed = await _list(client, resource, namespace=namespace)
        self._add(f"{head}{metadata['name']}{tail}" for metadata in listed)

    def _add(self, values: Iterable[str]) -> None:
        self._found += map(Candidate, values)

    def _word(self, dest: str) -> str:
        given = self._question.given.get(dest)
        return given[-1] if given else ""

    def _file(self, dest: str) -> str:
        """Return a typed path with quotes, variables and ``~`` expanded as the shell does."""
        typed = self._word(dest)
        with contextlib.suppress(ValueError):
            typed = "".join(shlex.split(typed))
        return os.path.expandvars(os.path.expanduser(typed))  # noqa: PTH111 - may be several, with colons between


async def _list(
    client: Verbs, resource: Resource, *, namespace: str | None = None, selector: str = ""
) -> list[Mapping[str, Any]]:
    """Return metadata of objects; of a large collection, only the first 500."""
    params = {"limit": str(_MOST)} | ({"labelSelector": selector} if selector else {})
    answer = await client.request(
        "GET", resource.path(namespace=namespace), params=params, headers=METADATA_ONLY
    )
    return [each["metadata"] for each in decode(answer)["items"]]


async def _clusters(client: Verbs) -> list[str]:
    listed = await _list(client, resources.NODES, selector=VIRTUAL_NODES)
    labelled = ((metadata.get("labels") or {}).get(names.LABEL_LOWER_CLUSTER) for metadata in listed)
    return sorted(set(filter(None, labelled)))
