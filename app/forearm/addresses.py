"""Where the API is to listen, and whether somebody listens somewhere."""

from __future__ import annotations

import socket

from forearm.config import ApiConfig
from forearm.errors import ConfigError


def check_address(api: ApiConfig) -> None:
    """Raises: ConfigError when the address can't be listened on, before minutes are spent on loading."""
    if api.uds:
        return
    family = socket.AF_INET6 if ":" in api.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((api.host, api.port))
        except OSError as error:
            raise ConfigError(
                f"--host {api.host or '0.0.0.0'} --port {api.port}: {error.strerror}; choose another address"
            ) from None


def answers(family: socket.AddressFamily, address: object) -> bool:
    """Whether somebody listens there."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(address)  # type: ignore[arg-type]
        except OSError:
            return False
    return True


def api_answers(api: ApiConfig) -> bool:
    """Whether the API listens."""
    if api.uds:
        return answers(socket.AF_UNIX, api.uds)
    if ":" in api.host:
        return answers(socket.AF_INET6, ("::1" if api.host == "::" else api.host, api.port))
    return answers(socket.AF_INET, ("127.0.0.1" if api.host in ("", "0.0.0.0") else api.host, api.port))
