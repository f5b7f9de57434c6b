"""A real node for a lower cluster: containerd, kubelet, kube-proxy and CoreDNS, with images made on this machine.

Needs root and Debian packages such as runc and iptables (``hack.sandbox.builds.packages``).
It uses its own root, state, socket, cgroup and network namespace. So the machine's containerd and firewall
are not affected, and nothing remains at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from clusterset.model.pod.conditions import condition
from controller_runtime.tls.key_pairs import sign
from controller_runtime.tls.pem import KeyPair
from hack.sandbox.builds import images
from hack.sandbox.cluster import Cluster
from hack.sandbox.errors import SandboxError
from hack.sandbox.nodes.network import Bridge, run
from hack.sandbox.nodes.remains import cgroup_hierarchies, clean_directory, clean_node
from hack.sandbox.nodes.services import NodeServices, dns_address
from hack.sandbox.process import Process

_READY_SECONDS = 150
_DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
"""Where every kubelet serves device plugins. It removes the sockets of others there, and no flag changes the folder."""
_WITH_OWN_DEVICE_PLUGINS = f"""set -e
mount --make-private "$(findmnt --noheadings --output TARGET --target {_DEVICE_PLUGINS})"
mount --bind "$0" {_DEVICE_PLUGINS}
exec "$@"
"""
"""Shell script that binds its first argument to that folder, then runs the others. The bind must not propagate."""


class RealNode:
    """One containerd, one kubelet and the services of a node, registered in a lower cluster."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        bridge: Bridge,
        binaries: Mapping[str, Path],
        dies_with_parent: bool,
    ) -> None:
        self.name = f"{cluster.name}-node"
        self._cluster = cluster
        self.bridge = bridge
        self._binaries = binaries
        self._directory = cluster.directory / "node"
        self._socket = self._directory / "c.sock"
        self._root = self._directory / "kubelet"
        digest = hashlib.sha256(str(self._directory).encode()).hexdigest()[:8]
        self.cgroup = f"vnode-{digest}"
        self._dies_with_us = dies_with_parent
        self._port = 10250
        self._snapshotter = "overlayfs"
        self.containerd = self._process(
            "containerd",
            [binaries["containerd"], "--config", self._directory / "containerd.toml"],
        )
        self.kubelet = self._process("kubelet", self._kubelet_command())
        self.services = NodeServices(
            cluster,
            node=self.name,
            bridge=bridge,
            binaries=binaries,
            directory=self._directory,
            dies_with_parent=dies_with_parent,
        )

    async def start(self) -> None:
        """Start the node and wait until it is Ready.

        Raises:
            SandboxError: it does not become Ready; quotes the log.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        if not _supports_overlay(self._directory):
            self._snapshotter = "native"
        self._write_configuration()
        self._make_cgroup()
        await self.containerd.start()
        self._cluster.nodes.append(self.containerd)
        await self._wait_for_containerd()
        applets = run("/bin/busybox", "--list").split()
        busybox = images.busybox_image(Path("/bin/busybox"), applets)
        await asyncio.to_thread(self.import_images, [images.pause_image(self._binaries["pause"]), busybox])
        self._share_kubelet_mounts()
        await self.kubelet.start()
        self._cluster.nodes.insert(0, self.kubelet)
        await self.services.start()
        await self._wait_for_node()

    async def listen_on(self, port: int) -> None:
        """Restart the kubelet with another port of its API, so that a virtual node at the same address can have port 10250."""
        self._port = port
        self._write_configuration()
        await self.kubelet.stop(seconds=5)
        await self.kubelet.start()
        await self._wait_for_node()

    async def stop(self) -> None:
        """Stop the kubelet, every container and containerd, and remove all that the node made."""
        await self.kubelet.stop(seconds=5)
        await self.services.stop()
        await asyncio.to_thread(clean_node, self._directory, self.cgroup)
        await self.containerd.stop(seconds=5)
        await asyncio.to_thread(clean_directory, self._directory)

    def import_images(self, wanted: Iterable[images.Image]) -> None:
        """Import images into containerd, which has no registry to pull from."""
        for image in wanted:
            archive = self._directory / "image.tar"
            images.write_archive(image, archive)
            self.import_archive(archive)
            archive.unlink()

    def import_archive(self, archive: Path) -> None:
        """Import the images of an archive file into containerd."""
        run(str(self._binaries["containerd"]), "import", str(self._socket), self._snapshotter, str(archive))

    async def _wait_for_containerd(self) -> None:
        for _ in range(1500):
            self.containerd.check()
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_unix_connection(self._socket)
                writer.close()
                return
            await asyncio.sleep(0.05)
        raise SandboxError(
            f"containerd does not answer: {self.containerd.last_line()} (log: {self.containerd.log})"
        )

    async def _wait_for_node(self) -> None:
        loop = asyncio.get_running_loop()
        deadline, said = loop.time() + _READY_SECONDS, ""
        while loop.time() < deadline:
            self.kubelet.check()
            try:
                node = await self._cluster.api.read(f"/api/v1/nodes/{self.name}")
            except SandboxError as error:
                said = f"kubelet does not register ({error})"
            else:
                ready = condition(node["status"], "Ready")
                if ready.get("status") == "True":
                    return
                said = f"kubelet is not Ready ({ready.get('message')})"
            await asyncio.sleep(0.1)
        raise SandboxError(f"{said}: {self.kubelet.last_line()} (log: {self.kubelet.log})")

    def _process(self, name: str, argv: list[str | Path]) -> Process:
        return Process(
            name, self.bridge.inside(argv), directory=self._directory, dies_with_parent=self._dies_with_us
        )

    # --- configuration ----------------------------------------------------------------------------

    def _kubelet_command(self) -> list[str | Path]:
        """Return the command line of a kubelet with a folder of its own for device plugins, in a mount namespace."""
        own = ["unshare", "--mount", "--propagation", "unchanged", "sh", "-c", _WITH_OWN_DEVICE_PLUGINS]
        return [
            *own,
            self._directory / "device-plugins",
            self._binaries["kubelet"],
            f"--config={self._directory / 'kubelet.json'}",
            f"--kubeconfig={self._directory / 'kubeconfig'}",
            f"--root-dir={self._root}",
            f"--cert-dir={self._directory / 'pki'}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.bridge.node_address}",
            "--node-labels=pool=real",
            "--v=1",
        ]

    def _write_configuration(self) -> None:
        pki = self._cluster.pki
        ca = KeyPair(pki.certificate("ca").read_bytes(), pki.key("ca").read_bytes())
        user = f"system:node:{self.name}"
        pki.issue("kubelet", sign(ca, user, organizations=["system:nodes"], usage="client"))
        pki.issue(
            "kubelet-serving",
            sign(ca, user, organizations=["system:nodes"], hosts=[self.bridge.node_address, self.name]),
        )
        self._cluster.write_kubeconfig("kubelet", path=self._directory / "kubeconfig")
        kubelet = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki.certificate("ca"))},
            },
            "authorization": {"mode": "Webhook"},
            "address": self.bridge.node_address,
            "port": self._port,
            "healthzPort": 10248,
            "readOnlyPort": 0,
            "tlsCertFile": str(pki.certificate("kubelet-serving")),
            "tlsPrivateKeyFile": str(pki.key("kubelet-serving")),
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "failSwapOn": False,
            "makeIPTablesUtilChains": True,
            "failCgroupV1": False,
            "enforceNodeAllocatable": [],
            "localStorageCapacityIsolation": False,
            "clusterDomain": "cluster.local",
            "clusterDNS": [dns_address(self._cluster)],
            "resolvConf": str(self._directory / "resolv.conf"),
            "maxPods": 200,
            "serializeImagePulls": False,
            "registryPullQPS": 0,
            "eventRecordQPS": 0,
            "nodeStatusUpdateFrequency": "5s",
            # Longest delay until files of a ConfigMap, or of the downward API, are updated.
            "syncFrequency": "10s",
            "evictionHard": {"memory.available": "50Mi"},
            "imageGCHighThresholdPercent": 100,
            "volumePluginDir": str(self._directory / "volume-plugins"),
            "podLogsDir": str(self._directory / "pod-logs"),
            "shutdownGracePeriod": "0s",
        }
        (self._directory / "resolv.conf").write_text("nameserver 127.0.0.1\n", encoding="utf-8")
        (self._directory / "kubelet.json").write_text(json.dumps(kubelet, indent=1), encoding="utf-8")
        cni = self._directory / "cni"
        cni.mkdir(exist_ok=True)
        network = {
            "cniVersion": "0.4.0",
            "name": self.bridge.name,
            "plugins": [
                {
                    # The node routes all traffic of pods, so it also translates the addresses of a Service's responses
                    # back. A bridge would need br_netfilter for that.
                    "type": "ptp",
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(self._directory / "ipam"),
                        "ranges": [[{"subnet": self.bridge.subnet}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }
        (cni / "10-sandbox.conflist").write_text(json.dumps(network, indent=1), encoding="utf-8")
        (self._directory / "containerd.toml").write_text(self._containerd_toml(cni), encoding="utf-8")

    def _containerd_toml(self, cni: Path) -> str:
        # Without NRI, which has the same socket for all nodes of the machine. A shim of another version may be on the PATH.
        return f"""version = 3
root = "{self._directory / "containerd"}"
state = "{self._directory / "run"}"
disabled_plugins = ["io.containerd.nri.v1.nri"]
[grpc]
  address = "{self._socket}"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "{self._snapshotter}"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{images.PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      runtime_path = "{self._binaries["containerd-shim-runc-v2"]}"
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "{cni}"
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
"""

    def _share_kubelet_mounts(self) -> None:
        """Make the kubelet's root a shared mount, so that containerd sees the volumes that the kubelet mounts in it."""
        for folder in (_DEVICE_PLUGINS, self._directory / "device-plugins", self._root):
            folder.mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", str(self._root), str(self._root))
        run("mount", "--make-shared", str(self._root))

    def _make_cgroup(self) -> None:
        """Make a separate cgroup, so that two kubelets on one machine do not end each other's pods."""
        for hierarchy in cgroup_hierarchies():
            home = hierarchy / self.cgroup
            home.mkdir(exist_ok=True)
            for setting in ("cpuset.cpus", "cpuset.mems"):
                source = hierarchy / setting
                if source.exists() and (home / setting).exists() and (text := source.read_text().strip()):
                    (home / setting).write_text(text)


def _supports_overlay(directory: Path) -> bool:
    """Report whether overlayfs works in a folder; not if the folder is on an overlay itself, as in Docker.

    Without overlayfs containerd copies the image for each container: 0.5 s of CPU time for the project's image.
    """
    with tempfile.TemporaryDirectory(dir=directory) as trial:
        lower, upper, work, merged = (Path(trial) / name for name in ("lower", "upper", "work", "merged"))
        for folder in (lower, upper, work, merged):
            folder.mkdir()
        options = f"lowerdir={lower},upperdir={upper},workdir={work}"
        try:
            run("mount", "-t", "overlay", "overlay", "-o", options, str(merged))
        except SandboxError:
            return False
        run("umount", str(merged))
    return True
