"""Certificates of one cluster, made at its start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from controller_runtime.tls.key_pairs import make_ca, sign
from controller_runtime.tls.pem import KeyPair

USERS: dict[str, tuple[str, Sequence[str]]] = {
    "admin": ("kubernetes-admin", ("system:masters",)),
    "controller-manager": ("system:kube-controller-manager", ()),
    "scheduler": ("system:kube-scheduler", ()),
    "kwok": ("kwok", ("system:masters",)),
    "kubelet-client": ("kube-apiserver-kubelet-client", ("system:masters",)),
}


class Pki:
    """A cluster's CA and the certificates it has signed, as files in one directory."""

    def __init__(self, directory: Path, *, name: str, addresses: Sequence[str], service_ip: str) -> None:
        """Create the CA, certificates and keys that a control plane needs.

        Args:
            directory: folder for the files.
            name: name of the cluster.
            addresses: addresses of the apiserver.
            service_ip: address of Service ``kubernetes``.
        """
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o700)
        # RSA, as kubeadm makes: apiservers verify a client's chain on every request, and RSA verifies fast.
        self.ca = make_ca(f"{name}-ca", key=rsa.generate_private_key(65537, 2048))
        self.issue("ca", self.ca)
        hosts = [
            "localhost",
            *addresses,
            service_ip,
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ]
        self.issue("apiserver", sign(self.ca, "kube-apiserver", hosts=hosts))
        for user, (common_name, organizations) in USERS.items():
            self.issue(user, sign(self.ca, common_name, organizations=organizations, usage="client"))
        front = make_ca(f"{name}-front-proxy-ca")
        self.issue("front-proxy-ca", front)
        self.issue("front-proxy-client", sign(front, "front-proxy-client", usage="client"))
        self._service_account_keys()

    def certificate(self, name: str) -> Path:
        """Return the path of a certificate."""
        return self.directory / f"{name}.crt"

    def key(self, name: str) -> Path:
        """Return the path of a private key."""
        return self.directory / f"{name}.key"

    def issue(self, name: str, pair: KeyPair) -> None:
        """Write a certificate and key."""
        pair.write(self.certificate(name), self.key(name))

    def _service_account_keys(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        (self.directory / "sa.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        (self.directory / "sa.pub").write_bytes(
            key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )
