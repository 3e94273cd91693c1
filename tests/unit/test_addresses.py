"""The address that a server listens on."""

from __future__ import annotations

from typing import Any

import pytest

from forearm.config.api_config import ApiConfig
from forearm.supervisor.addresses import unprotected


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
