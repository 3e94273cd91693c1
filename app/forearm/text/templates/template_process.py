"""Render the templates of requests, each in a fork: python -m forearm.text.templates.template_process."""

from __future__ import annotations

from forearm.errors import InvalidRequest
from forearm.json_types import Json
from forearm.text.sandbox.fork_server import SandboxTask, serve
from forearm.text.templates.chat_template import rendered

# Rendering 10,000 messages with a model's template takes 0.1 to 0.4 s (tests/api/test_untrusted_templates.py).
RENDER_S = 5.0
_FORK_BYTES = 256 << 20  # a body has at most 32 MiB, and is copied a few times
MAX_PROMPT_CHARACTERS = 32 << 20


def work_of(shared: Json) -> SandboxTask:
    """Return the task that renders a conversation with the template in its variables."""

    def do(job: Json) -> Json:
        text = rendered(job["conversation"], job["variables"])
        if len(text) > MAX_PROMPT_CHARACTERS:
            raise InvalidRequest(
                f"the chat template makes {len(text)} characters; at most {MAX_PROMPT_CHARACTERS} are taken",
                "chat_template",
            )
        return {"text": text}

    return SandboxTask("rendering it", do, RENDER_S, _FORK_BYTES)


if __name__ == "__main__":
    serve(work_of)
