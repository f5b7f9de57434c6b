"""Parses listening addresses of flags, binds sockets to them, and names the hosts of their certificates."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket

from controller_runtime.errors import ConfigError


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, ``:port`` or ``[v6]:port``.

    Raises:
        ConfigError: the address has another form.
    """
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"address {address!r}: write an IPv6 address in brackets, such as [::1]:8080")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"address {address!r} is not host:port")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Report whether a host is loopback, by name or address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def service_hosts(name: str, namespace: str) -> list[str]:
    """Return the host names of a Service, for certificates; empty if ``name`` is empty."""
    host = f"{name}.{namespace}"
    return [f"{host}.svc", host, f"{host}.svc.cluster.local"] if name else []


def bind(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket; "" and "::" listen on IPv4 and IPv6 if the machine has both.

    One socket serves both families, so port 0 becomes the same free port for both.

    Raises:
        OSError: has the errno of the cause; ``strerror`` is a sentence that names the address.
    """
    shown = f"{f'[{host}]' if ':' in host else host or '*'}:{port}"
    try:
        if host in {"", "::"} and socket.has_dualstack_ipv6():
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
        family, _, _, _, where = socket.getaddrinfo(
            "0.0.0.0" if host in {"", "::"} else host,  # noqa: S104 - requested by the caller
            port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE,
        )[0]
        return socket.create_server(where[:2], family=family)
    except socket.gaierror as error:
        raise OSError(errno.EADDRNOTAVAIL, f"address {shown}: {error.strerror}") from None
    except OSError as error:
        number = error.errno or errno.EIO
        reasons = {
            errno.EADDRINUSE: f"address {shown} is already in use",
            errno.EADDRNOTAVAIL: f"address {shown} is not an address of this machine",
            errno.EACCES: f"address {shown} cannot be bound: permission denied",
        }.get(number, f"address {shown}: {os.strerror(number)}")
        raise OSError(number, reasons) from None
