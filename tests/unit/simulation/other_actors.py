"""What others do in the lower clusters, to our objects and beside them. Each deed returns what it was; empty: nothing."""

from __future__ import annotations

from typing import ClassVar

from tests.fakes.apiserver.server import Server
from tests.fakes.apiserver.storage import Body
from tests.unit.simulation.actions import Actor
from tests.unit.simulation.bodies import key_of
from tests.unit.simulation.users import NAMES, SECRETS, SERVICES, SETTINGS, SPACES

HOLD = "stranger.com/hold"
_POOLS = {"pods": NAMES, "configmaps": SETTINGS, "secrets": SECRETS, "services": SERVICES}


class Strangers(Actor):
    """They delete and change what is ours, and take names that we need."""

    _weights: ClassVar = {"delete_namespace": 0.3}

    def delete(self) -> str:
        lower = self._any_lower()
        plural = self._chance.choice(
            ["pods", "pods", "pods", "configmaps", "secrets", "services", "endpointslices"]
        )
        body = self._any_of(lower, plural, is_ours=True)
        grace = self._chance.choice([None, 0]) if plural == "pods" else None
        lower.delete(plural, key_of(body), who="stranger", grace=grace)
        return f"{lower.name} {plural} {key_of(body)} {grace}"

    def change(self) -> str:
        lower = self._any_lower()
        plural = self._chance.choice(
            ["pods", "configmaps", "secrets", "services", "endpointslices", "namespaces"]
        )
        body = self._any_of(lower, plural, is_ours=True)
        change: Body = {"metadata": {"labels": {"stranger": str(self._chance.random())}}}
        if plural in {"configmaps", "secrets"} and self._chance.random() < 0.5:
            change = {"data": {"k": "meddled"}}
        elif plural == "services" and self._chance.random() < 0.5:
            change = {"spec": {"ports": [{"port": 1, "protocol": "TCP"}]}}
        elif plural == "endpointslices":
            change = {"endpoints": []}
        lower.patch(plural, key_of(body), change, who="stranger")
        return f"{lower.name} {plural} {key_of(body)} {change}"

    def take_a_name(self) -> str:
        lower, space = self._any_lower(), self._chance.choice(SPACES)
        if lower.find("namespaces", space) is None:
            lower.create("namespaces", {"metadata": {"name": space}}, who="stranger")
        plural = self._chance.choice(list(_POOLS))
        name = self._chance.choice(_POOLS[plural])
        if lower.find(plural, f"{space}/{name}"):
            if self._chance.random() < 0.5:
                return ""
            lower.delete(plural, f"{space}/{name}", who="stranger", grace=0)
            if lower.find(plural, f"{space}/{name}"):
                return ""
        body: Body = {"metadata": {"name": name, "labels": {"team": "foreign"}}}
        if plural == "pods":
            body["spec"] = {"containers": [{"name": "main", "image": "foreign"}]}
        elif plural == "services":
            body["spec"] = {"ports": [{"port": 5, "protocol": "TCP"}]}
        else:
            body["data"] = {"foreign": "yes"}
        lower.create(plural, body, who="stranger", namespace=space)
        return f"{lower.name} {plural} {space}/{name}"

    def give_a_name_back(self) -> str:
        lower, plural = self._any_lower(), self._chance.choice(list(_POOLS))
        body = self._any_of(lower, plural, is_ours=False)
        lower.delete(plural, key_of(body), who="stranger", grace=0)
        return f"{lower.name} {plural} {key_of(body)}"

    def delete_namespace(self) -> str:
        lower, space = self._any_lower(), self._chance.choice(SPACES)
        lower.delete("namespaces", space, who="stranger")
        return f"{lower.name} {space}"

    def hold_pod(self) -> str:
        """With a finalizer, or no longer."""
        lower = self._any_lower()
        body = self._any_of(lower, "pods", is_ours=True)
        held = body["metadata"].get("finalizers")
        change: Body = {"metadata": {"finalizers": None if held else [HOLD]}}
        lower.patch("pods", key_of(body), change, who="stranger")
        return f"{lower.name} {key_of(body)} {'off' if held else 'on'}"

    def _any_lower(self) -> Server:
        return self._chance.choice(list(self._world.lowers.values()))

    def _any_of(self, server: Server, plural: str, *, is_ours: bool) -> Body:
        found = [body for body in server.all(plural) if self._world.watchdog.is_ours(body) == is_ours]
        return self._any([body for body in found if not key_of(body).startswith("kube-")])
