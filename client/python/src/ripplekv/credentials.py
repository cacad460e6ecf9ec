"""What a client shows, and whom it trusts."""

from __future__ import annotations

import ipaddress
import os
import pathlib

import grpc

Path = str | os.PathLike[str]


def channel_credentials(
    tls: bool, ca: Path | None, certificate: Path | None, key: Path | None
) -> grpc.ChannelCredentials | None:
    """None for plain text. OSError where a file cannot be read."""
    if (certificate is None) != (key is None):
        raise ValueError("tls_certificate and tls_key go together: one of them is missing")
    if not (tls or ca or certificate):
        return None
    read = [None if each is None else pathlib.Path(each).read_bytes() for each in (ca, key, certificate)]
    for file, content, kind in zip((ca, key, certificate), read, (b"CERTIFICATE", b"PRIVATE KEY", b"CERTIFICATE")):
        if content is not None and kind + b"-----" not in content:
            raise ValueError(f"{file} holds no {kind.decode().lower()} in PEM")
    return grpc.ssl_channel_credentials(*read)


def token_metadata(token: str | None, address: str, tls: bool) -> tuple[tuple[str, str], ...]:
    if not token:
        return ()
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise ValueError("token must be printable ASCII characters without spaces")
    if not tls and not is_loopback(address):
        raise ValueError(f"the token would be sent to {address} in plain text: call by TLS (tls=True or tls_ca)")
    return (("authorization", f"Bearer {token}"),)


def is_loopback(address: str) -> bool:
    """Whether what is sent to that gRPC target stays on this machine."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    target = address.rpartition("/")[2]
    for scheme in ("dns:", "ipv4:", "ipv6:"):
        target = target.removeprefix(scheme)
    hosts = [each.rpartition(":")[0].removeprefix("[").removesuffix("]") for each in target.split(",")]
    return all(host == "localhost" or _is_loopback_ip(host) for host in hosts)


def _is_loopback_ip(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
