"""What people and controllers of the upper cluster do there. Each deed returns what it was; empty: nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from controller_runtime.client.client import PatchType
from tests.fakes.apiserver.storage import Body
from tests.unit.simulation.actions import Actor
from tests.unit.simulation.bodies import TOKEN, key_of, uid_of

if TYPE_CHECKING:
    from tests.unit.simulation.world import World

SPACES = ("shop", "bank")
NAMES = tuple(f"web-{number}" for number in range(6))
SETTINGS = ("settings", "flags")
SECRETS = ("password",)
SERVICES = ("front", "back")


class Users(Actor):
    """They make, change and delete everything that is mirrored."""

    _weights: ClassVar = {
        "make_pod": 8, "replace_pod": 3, "delete_pod": 4, "change_pod": 2, "change_namespace": 1.5, "collect_pods": 0.3,
    }  # fmt: skip

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._upper = world.upper

    def make_pod(self) -> str:
        space, name = self._chance.choice(SPACES), self._chance.choice(NAMES)
        if self._upper.find("pods", f"{space}/{name}"):
            return ""
        made = self._upper.create("pods", self._pod(name), who="user", namespace=space)
        if self._chance.random() < 0.7:
            self._upper.bind(key_of(made), self._chance.choice(self._world.nodes), who="scheduler")
        return f"{key_of(made)} {uid_of(made)}"

    def replace_pod(self) -> str:
        """Delete the object at once and recreate it under its name."""
        pod = self._any_pod()
        key, metadata = key_of(pod), pod["metadata"]
        self._upper.delete("pods", key, who="user", grace=0)
        if self._upper.find("pods", key):
            return key
        self._upper.create("pods", self._pod(metadata["name"]), who="user", namespace=metadata["namespace"])
        self._upper.bind(key, self._chance.choice(self._world.nodes), who="scheduler")
        return key

    def delete_pod(self) -> str:
        pod = self._any_pod()
        grace = self._chance.choice([None, None, None, 0, 1, 300])
        self._upper.delete("pods", key_of(pod), who="user", grace=grace)
        return f"{key_of(pod)} {grace}"

    def evict_pod(self) -> str:
        pod = self._any_pod()
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
        status: Body = {"status": {"conditions": [condition]}}
        self._upper.patch(
            "pods", key_of(pod), status, who="user", subresource="status", patch_type=PatchType.STRATEGIC
        )
        if self._chance.random() < 0.7:
            self._upper.delete("pods", key_of(pod), who="user")
        return key_of(pod)

    def change_pod(self) -> str:
        pod = self._any_pod()
        changes: list[Body] = [
            {"metadata": {"labels": {"x": str(self._chance.random())}}},
            {"metadata": {"annotations": {"y": str(self._chance.random())}}},
            {"metadata": {"labels": {"x": None}}},
            {"metadata": {"labels": {"app": self._chance.choice(SERVICES)}}},
            {"spec": {"containers": [{"name": "main", "image": f"web:{self._chance.randrange(5)}"}]}},
        ]
        change = self._chance.choice(changes)
        self._upper.patch("pods", key_of(pod), change, who="user", patch_type=PatchType.STRATEGIC)
        return f"{key_of(pod)} {change}"

    def take_off_finalizers(self) -> str:
        key = key_of(self._any([pod for pod in self._upper.all("pods") if pod["metadata"].get("finalizers")]))
        self._upper.patch("pods", key, {"metadata": {"finalizers": None}}, who="user")
        return key

    def change_config_map(self) -> str:
        return self._content("configmaps", self._chance.choice(SETTINGS))

    def change_secret(self) -> str:
        return self._content("secrets", self._chance.choice(SECRETS))

    def change_service(self) -> str:
        space, name = self._chance.choice(SPACES), self._chance.choice(SERVICES)
        key, ports = f"{space}/{name}", [{"port": self._chance.randrange(80, 90), "protocol": "TCP"}]
        if self._upper.find("services", key) is not None:
            if self._chance.random() < 0.7:
                self._upper.patch("services", key, {"metadata": {"labels": {"z": str(ports)}}}, who="user")
                return f"{key} changed"
            self._upper.delete("services", key, who="user")
            if self._chance.random() < 0.5:
                return f"{key} deleted"
        specs: list[Body] = [
            {"selector": {"app": name}, "ports": ports},
            {"selector": {"app": name}, "clusterIP": "None", "ports": ports},
            {"type": "ExternalName", "externalName": "example.com"},
        ]
        body = {"metadata": {"name": name}, "spec": self._chance.choice(specs)}
        self._upper.create("services", body, who="user", namespace=space)
        return f"{key} made"

    def change_namespace(self) -> str:
        space = self._chance.choice(SPACES)
        if self._upper.find("namespaces", space) is None:
            self._world.make_namespace(space)
            return f"{space} made"
        if self._chance.random() < 0.7:
            return ""
        self._upper.delete("namespaces", space, who="user")
        return f"{space} deleted"

    def collect_pods(self) -> str:
        """A virtual node is missing for long: its pods are deleted by force."""
        node = self._chance.choice(self._world.nodes)
        for pod in self._upper.all("pods"):
            if pod["spec"].get("nodeName") == node and self._chance.random() < 0.7:
                self._upper.delete("pods", key_of(pod), who="pod garbage collector", grace=0)
        return node

    # --- within -----------------------------------------------------------------------------------

    def _any_pod(self) -> Body:
        return self._any(self._upper.all("pods"))

    def _content(self, plural: str, name: str) -> str:
        space, data = self._chance.choice(SPACES), {"k": str(self._chance.randrange(1000))}
        key, draw = f"{space}/{name}", self._chance.random()
        body: Body = {"metadata": {"name": name}, "data": data}
        if self._upper.find(plural, key) is not None:
            if draw > 0.5:
                self._upper.patch(plural, key, {"data": data}, who="user")
                return f"{key} changed"
            self._upper.delete(plural, key, who="user")
            if draw > 0.2:
                return f"{key} deleted"
            body["immutable"] = True
        self._upper.create(plural, body, who="user", namespace=space)
        return f"{key} made"

    def _pod(self, name: str) -> Body:
        chance = self._chance
        volumes: list[Any] = []
        if chance.random() < 0.5:
            source = {"name": chance.choice(SETTINGS), "optional": chance.random() < 0.5}
            volumes.append({"name": "s", "configMap": source})
        if chance.random() < 0.3:
            secret = {"secretName": chance.choice(SECRETS), "optional": chance.random() < 0.5}
            volumes.append({"name": "p", "secret": secret})
        if chance.random() < 0.4:
            volumes.append(TOKEN)
        metadata: Body = {"name": name, "labels": {"app": chance.choice(SERVICES)}}
        if chance.random() < 0.15:
            metadata["finalizers"] = ["example.com/hold"]
        spec: Body = {
            "containers": [{"name": "main", "image": "web:1"}], "volumes": volumes,
            "restartPolicy": chance.choice(["Always", "Always", "Never"]),
        }  # fmt: skip
        if chance.random() < 0.2:
            spec["terminationGracePeriodSeconds"] = chance.choice([0, 1, 600])
        return {"metadata": metadata, "spec": spec}
