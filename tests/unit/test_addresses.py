"""The address that a server listens on."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from forearm.config.api_config import ApiConfig
from forearm.errors import ConfigError
from forearm.supervisor.addresses import held_address, unprotected, url


@pytest.mark.parametrize(
    ("given", "warns"),
    [
        ({}, "all addresses"),
        ({"host": "0.0.0.0"}, "0.0.0.0"),
        ({"host": "::"}, "::"),
        ({"host": "server.example"}, "server.example"),
        ({"host": "127.0.0.1"}, None),
        ({"host": "127.1.2.3"}, None),
        ({"host": "::1"}, None),
        ({"host": "localhost"}, None),
        ({"uds": "api.sock"}, None),
        ({"api_key": ("secret",)}, None),
        ({"api_keys_file": "keys.json"}, None),
    ],
)
def test_a_server_that_others_reach_without_a_key_says_so(given: dict[str, Any], warns: str | None) -> None:
    warning = unprotected(ApiConfig(**given))

    assert (f"listens on {warns} and asks for no key" in warning) if warns else warning == ""


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_port_0_is_any_port_that_is_free(host: str) -> None:
    with held_address(ApiConfig(host=host, port=0)) as port, socket.socket() as other:
        other.bind(("127.0.0.1", port))

        assert port > 0


def test_a_socket_whose_path_is_too_long_is_refused_before_the_start(tmp_path: Path) -> None:
    path = str(tmp_path / ("x" * 107))

    with pytest.raises(ConfigError, match="a socket's path has at most 107 bytes"), held_address(ApiConfig(uds=path)):
        pass


@pytest.mark.parametrize(
    ("host", "https", "expected"),
    [
        ("0.0.0.0", False, "http://0.0.0.0:80"),
        ("::1", False, "http://[::1]:80"),
        ("server.example", True, "https://server.example:80"),
    ],
)
def test_an_address_is_one_that_a_client_can_be_given(host: str, https: bool, expected: str) -> None:
    assert url(host, 80, https=https) == expected
