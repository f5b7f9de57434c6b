"""Send the requests of a case to a server, in memory or real, and check the responses."""

from __future__ import annotations

from typing import Any

from controller_runtime.errors import ApiError
from controller_runtime.resources import Resource
from tests.fakes.apiserver.cases import Case, Step

NAMESPACE = "default"


async def run(case: Case, client: Any) -> None:
    """Send a case's requests and check the responses.

    Raises:
        AssertionError: a response differs.
    """
    last: dict[str, Any] = {}
    name = case.name.lower().replace(" ", "-")
    for number, step in enumerate(case.steps):
        where = f"{case.name}, step {number + 1} ({step.verb})"
        try:
            answer = await _send(client, case.resource, name, step, last)
        except ApiError as error:
            if error.code != step.code:
                raise AssertionError(f"{where}: {error!r}") from error
            continue
        assert not step.code, f"{where}: no error {step.code}"
        if answer.get("metadata", {}).get("uid"):
            last = answer
        for path, expected in step.shows.items():
            assert field_at(answer, path) == expected, f"{where}: {path}"


def field_at(body: Any, path: str) -> Any:
    """Return the value of a field, or None; steps that are numbers are positions in a list."""
    for part in path.split("."):
        if isinstance(body, list):
            body = body[int(part)] if int(part) < len(body) else None
        else:
            body = (body or {}).get(part)
    return body


async def _send(client: Any, resource: Resource, name: str, step: Step, last: dict[str, Any]) -> Any:
    scope = {"namespace": NAMESPACE} if resource.namespaced else {}
    options, body = _filled({**scope, **step.options}, last), _filled(step.body, last)
    if step.verb == "create":
        metadata = {"name": name, **body.get("metadata", {})}
        return await client.create(resource, {**body, "metadata": metadata}, **options)
    if step.verb == "update":
        return await client.update(
            resource, {**body, "metadata": {"name": name, **scope, **body.get("metadata", {})}}
        )
    if step.verb == "patch":
        return await client.patch(resource, name, body, **options)
    if step.verb == "evict":
        eviction = {
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, **scope}, "deleteOptions": body or {},
        }  # fmt: skip
        return await client.create(resource, eviction, name=name, subresource="eviction", **options)
    return await getattr(client, step.verb)(resource, name, **options)


def _filled(value: Any, last: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, last) for key, item in value.items()}
    if isinstance(value, str) and value.startswith("$") and "/" not in value:
        return last["metadata"][value[1:]]
    return value
