"""Checks of the API's address, keys and TLS files before the start, and of whether an address answers."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import ipaddress
import os
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

from forearm.config.api_config import ApiConfig
from forearm.errors import ConfigError

LONGEST_UDS = 107  # bytes: sun_path of unix(7) has 108, and the last one is 0
LEAVING_S = 2.0  # for the port of a killed server, which its children release within moments


@contextlib.contextmanager
def held_address(api: ApiConfig) -> Iterator[int]:
    """Check that the address is free, before minutes are spent on loading, and hold the lock of a Unix socket.

    The lock is needed as a second server could bind the same path, unnoticed by the first.

    Yields: the port to listen on.
    Raises: ConfigError naming the address.
    """
    if not api.uds:
        yield free_port(api)
        return
    if len(os.fsencode(api.uds)) > LONGEST_UDS:
        raise ConfigError(f"--uds {api.uds}: a socket's path has at most {LONGEST_UDS} bytes; choose a shorter one")
    at, lock = Path(api.uds), f"{api.uds}.lock"
    try:
        held = os.open(lock, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise ConfigError(f"--uds {at}: {lock}: {error.strerror}; choose another path") from None
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"--uds {at}: another server listens there; stop it, or choose another path") from None
        if at.exists() and not at.is_socket():
            raise ConfigError(f"--uds {at}: the file exists and is no socket; choose another path")
        if answers(socket.AF_UNIX, str(at)):
            raise ConfigError(f"--uds {at}: another program listens there; choose another path")
        yield api.port
        Path(lock).unlink(missing_ok=True)
    finally:
        os.close(held)


def free_port(api: ApiConfig) -> int:
    """Return the port to listen on after checking that it is free: the configured one, or for 0 one that is free.

    Raises: ConfigError naming the address.
    """
    family = socket.AF_INET6 if ":" in api.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        end = time.monotonic() + LEAVING_S
        while True:
            try:
                probe.bind((api.host, api.port))
                return int(probe.getsockname()[1])
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > end:
                    raise ConfigError(
                        f"--host {api.host or '0.0.0.0'} --port {api.port}: {error.strerror}; choose another address"
                    ) from None
            time.sleep(0.05)


def unprotected(api: ApiConfig) -> str:
    """Return a warning if other hosts can reach the API and no key is asked for; "" if not.

    All addresses stay the default: scripts, containers and units that were written for `vllm serve` expect it.
    """
    if api.uds or api.api_key or api.api_keys_file or api.host == "localhost":
        return ""
    with contextlib.suppress(ValueError):  # a name, which may stand for any address
        if ipaddress.ip_address(api.host).is_loopback:
            return ""
    where = api.host or "all addresses"
    return (
        f"the API listens on {where} and asks for no key: anyone who reaches port {api.port} may use it. "
        "Set --api-key or --api-keys-file, or --host 127.0.0.1"
    )


def check_tls(api: ApiConfig) -> None:
    """Check the files of HTTPS before anything is loaded.

    Raises: ConfigError naming the file.
    """
    if not api.ssl_certfile:
        if api.ssl_keyfile:
            raise ConfigError(f"--ssl-keyfile {api.ssl_keyfile}: HTTPS needs a certificate, too; add --ssl-certfile")
        return
    given = {"--ssl-certfile": api.ssl_certfile, "--ssl-keyfile": api.ssl_keyfile, "--ssl-ca-certs": api.ssl_ca_certs}
    for flag, file in given.items():
        if file and not Path(file).is_file():
            raise ConfigError(f"{flag} {file}: no such file")
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        # No password: the workers that read the key have no terminal to ask for it.
        context.load_cert_chain(api.ssl_certfile, api.ssl_keyfile or None, password="")
        if api.ssl_ca_certs:
            context.load_verify_locations(api.ssl_ca_certs)
        if api.ssl_ciphers:
            context.set_ciphers(api.ssl_ciphers)
    except (OSError, ssl.SSLError) as error:
        said = ", ".join(f"{flag} {file}" for flag, file in given.items() if file)
        raise ConfigError(f"{said}: {error}; give PEM files that belong together, the key without a password") from None


def url(host: str, port: int, *, https: bool) -> str:
    """Return the address of an API for clients: IPv6 addresses are in brackets."""
    return f"{'https' if https else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def answers(family: socket.AddressFamily, address: object) -> bool:
    """True if a process accepts connections at the address."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.settimeout(1)
            probe.connect(address)  # type: ignore[arg-type]
    except OSError:  # nothing listens, or no descriptor is free for the probe
        return False
    return True


def api_answers(api: ApiConfig) -> bool:
    """True if the API listens."""
    if api.uds:
        return answers(socket.AF_UNIX, api.uds)
    if ":" in api.host:
        return answers(socket.AF_INET6, ("::1" if api.host == "::" else api.host, api.port))
    return answers(socket.AF_INET, ("127.0.0.1" if api.host in ("", "0.0.0.0") else api.host, api.port))
