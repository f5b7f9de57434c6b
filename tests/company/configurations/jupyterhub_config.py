"""The hub of the suite: a KubeSpawner, a client with all rights, and no proxy, because servers are used by their pods' addresses."""

# mypy: ignore-errors
# ruff: noqa: F821 - JupyterHub gives get_config

import json
import os

from jupyterhub.proxy import Proxy

SEEN = json.loads(os.environ["COMPANY"])


class NoProxy(Proxy):
    """Keeps routes, and forwards nothing."""

    should_start = False

    def __init__(self, **options):
        super().__init__(**options)
        self.routes = {}

    async def add_route(self, routespec, target, data):
        self.routes[routespec] = {"routespec": routespec, "target": target, "data": data}

    async def delete_route(self, routespec):
        self.routes.pop(routespec, None)

    async def get_all_routes(self):
        return self.routes


c = get_config()
c.JupyterHub.proxy_class = NoProxy
c.JupyterHub.spawner_class = "kubespawner.KubeSpawner"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.hub_bind_url = f"http://{SEEN['address']}:{SEEN['port']}"
c.JupyterHub.hub_connect_url = f"http://{SEEN['address']}:{SEEN['port']}"
c.JupyterHub.bind_url = f"http://{SEEN['address']}:0"
c.JupyterHub.services = [{"name": "company", "api_token": SEEN["token"]}]
c.JupyterHub.load_roles = [
    {
        "name": "company",
        "services": ["company"],
        "scopes": ["admin:users", "admin:servers", "access:servers", "read:hub"],
    }
]
c.KubeSpawner.namespace = SEEN["namespace"]
c.KubeSpawner.image = SEEN["image"]
c.KubeSpawner.cmd = ["python3.11", "-m", "jupyterhub.singleuser"]
c.KubeSpawner.args = ["--ServerApp.root_dir=/tmp"]
c.KubeSpawner.node_selector = SEEN["scheduling"]["nodeSelector"]
c.KubeSpawner.tolerations = SEEN["scheduling"]["tolerations"]
c.KubeSpawner.start_timeout = c.KubeSpawner.http_timeout = 180
c.KubeSpawner.poll_interval = 2
c.KubeSpawner.delete_grace_period = 1
c.KubeSpawner.environment = {"JUPYTERHUB_SINGLEUSER_APP": "jupyter_server.serverapp.ServerApp"}
