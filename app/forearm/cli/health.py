"""`forearm health`: exit status 0 if a server of this machine takes requests; for containers and services.

Without --url it asks the `forearm serve` that is process 1, as in a container, at the address in its command line. It
needs no key, trusts any certificate (the server is on this machine), and waits a few seconds at most.
"""

from __future__ import annotations

import http.client
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from forearm.config.flags import CommandParser, read_line
from forearm.errors import ConfigError

_FIRST = Path("/proc/1/cmdline")
_TIMEOUT_S = 5.0
_READY = "/readyz"


def run(argv: Sequence[str]) -> int:
    """Ask the server. Returns: 0 if it takes requests, 1 if not.

    Raises: ConfigError for a malformed address.
    """
    parser = CommandParser("forearm health [--url URL]", "Exit status 0 if a server takes requests, else 1.")
    parser.add_argument("--url", help="the server's address; absent: that of the `forearm serve` which is process 1")
    given = parser.parse_args(argv)
    scheme, host, port = address(given.url) if given.url else served_address(_FIRST)
    try:
        status, text = ask(scheme, host, port)
    except OSError as error:
        print(f"not ready: {scheme}://{host}:{port}: {error} (--url asks at another address)", file=sys.stderr)
        return 1
    print(text, file=sys.stderr if status != 200 else sys.stdout)
    return int(status != 200)


def address(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port of a URL.

    Raises: ConfigError if it has none.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"--url {url}: it must look like http://localhost:8000")
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def served_address(command_line: Path) -> tuple[str, str, int]:
    """Return scheme, host and port of the `forearm serve` with this command line, as seen from its own machine.

    Another program's command line has the defaults.

    Raises: ConfigError for a server on a Unix socket.
    """
    words = command_line.read_text().split("\0")[:-1]
    after = words.index("serve") + 1 if "serve" in words else len(words)
    api = read_line(CommandParser("forearm serve", ""), words[after:]).configs.api
    if api.uds:
        raise ConfigError(f"--uds {api.uds}: health asks over TCP; ask the socket yourself, or leave --uds out")
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(api.host, api.host)
    return "https" if api.ssl_certfile else "http", host, api.port


def ask(scheme: str, host: str, port: int) -> tuple[int, str]:
    """Return the status and the text of the server's answer.

    Raises: OSError if there is no answer.
    """
    if scheme == "https":
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, port, timeout=_TIMEOUT_S, context=trusting
        )
    else:
        connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", _READY)
        reply = connection.getresponse()
        return reply.status, reply.read(10_000).decode(errors="replace")
    except http.client.HTTPException as error:
        raise OSError(f"{host}:{port} does not answer HTTP: {error!r}") from None
    finally:
        connection.close()
