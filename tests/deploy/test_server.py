"""The server: it takes requests, answers them, and computes with the tier that this processor should have."""

from __future__ import annotations

import json
import os
import re
from typing import Any

# The kernels of each generation, as docs/operations.md says.
TIERS = {
    "Graviton1": {"neon"},
    "Graviton2": {"neon_fp16"},
    "Graviton3": {"sve256"},
    "Graviton4": {"neon_mm"},
    "Graviton5": {"neon_mm"},
}


def get(host: Any, url: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the answer to a request sent on the host. curl gets the body as an argument, the key by standard input."""
    key = os.environ.get("FOREARM_API_KEY", "")
    data = f"--json '{json.dumps(body)}'" if body else ""
    header = f'header = "Authorization: Bearer {key}"' if key else ""
    found: dict[str, Any] = json.loads(
        host.check_output(f"printf '%s' '{header}' | curl -fsS --max-time 300 --config - {data} {url}")
    )
    return found


def test_it_is_ready(host: Any, url: str) -> None:
    assert get(host, f"{url}/readyz")["status"] == "ready"


def test_it_answers_a_chat(host: Any, url: str) -> None:
    model = get(host, f"{url}/v1/models")["data"][0]["id"]
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Why is the sky blue?"},
    ]
    answer = get(host, f"{url}/v1/chat/completions", {"model": model, "max_tokens": 12, "messages": messages})
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"]
    assert 0 < answer["usage"]["completion_tokens"] <= 12


def test_the_tier_is_this_processors(host: Any, deployed: dict[str, Any], url: str) -> None:
    metrics = host.check_output(f"curl -fsS {url}/metrics")
    used = set(re.findall(r'^forearm:kernel_tier_info\{[^}]*tier="(\w+)"', metrics, re.MULTILINE))
    assert used, "no metric tells the tier"
    expected = TIERS.get(deployed["generation"]["name"])
    if expected is not None:
        assert used == expected


def test_no_tier_was_found_wrong_at_start(host: Any, url: str) -> None:
    found = re.search(
        r"^forearm:kernel_tiers_quarantined\S* (\S+)$", host.check_output(f"curl -fsS {url}/metrics"), re.M
    )
    assert found is not None
    assert float(found[1]) == 0
