"""The `forearm` command. Each command imports what it needs when it runs, so that the help is quick."""

from __future__ import annotations

import contextlib
import errno
import os
import pkgutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from forearm import __version__
from forearm.descriptors import check_text, open_standard_streams
from forearm.errors import ConfigError, ForearmError

if TYPE_CHECKING:
    from argparse import Namespace

    from forearm.cli.client import Client
    from forearm.config.flags import CommandParser

USAGE = """usage: forearm COMMAND ...

  run [MODEL]         talk to a model: one command from nothing to a conversation
  serve [MODEL]       serve a model over HTTP, as OpenAI's API
  pull MODEL          download a model
  list                downloaded models: size, family, format, context
  show [MODEL]        what a model is, and whether it fits this machine
  rm MODEL...         delete downloaded models
  ps                  running servers of this machine
  stop MODEL...       stop running servers
  generate [MODEL]    answer one prompt here, without a server
  chat                talk to a running server
  complete            have a running server continue a text
  plan [MODEL]        memory a model needs and speed it would have, before any download
  doctor [MODEL]      what this host lacks or wastes, each with its remedy
  bench KIND          measure a running server, or this machine
  run-batch [MODEL]   answer a file of requests
  quantize [MODEL]    write a model with quantized weights, for forearm, vLLM and transformers
  health              exit status 0 if a server takes requests
  completion SHELL    script that completes commands, flags and models in bash, zsh or fish
  --version

`forearm COMMAND --help` lists the flags of a command, --help=engine a group
and --help=FLAG one of them. MODEL is a folder, a .gguf file, a
Hugging Face id (owner/name, or owner/name:Q4_K_M for a GGUF file of a repository), a short name
(qwen3, qwen3:4b, ...), or absent: the small demonstration model of pip install 'forearm[demo]'."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns: its exit status."""
    open_standard_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"] and words[1:]:  # forearm help serve, forearm help bench latency
        words = [*words[1:], "--help"]
    name = words[0] if words else ""
    try:
        with _cleaned_up_on_sigterm():
            status = _command(name, words[1:])
            sys.stdout.flush()
        return status
    except ForearmError as error:
        print(f"forearm {name}: {error}", file=sys.stderr)
        return ConfigError.exit_status if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 130
    except ImportError as error:  # of a module in C or C++, whose first lines Ctrl-C has interrupted
        if not isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
            raise
        return 130
    except BrokenPipeError:  # the reader of our output has ended: `forearm plan ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python prints an error at its end
        return 141
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"forearm {name}: {error.filename or 'standard output'}: {error.strerror}", file=sys.stderr)
        return 1


def _command(name: str, words: Sequence[str]) -> int:
    if name in ("--version", "-v"):  # vLLM's names
        from forearm.commit import commit

        print(f"forearm {__version__} {commit()}".rstrip())
        return 0
    if name in ("", "-h", "--help", "help"):
        print(USAGE)
        return 0 if name else 2
    if name not in COMMANDS:
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.7)  # at 0.6 `create` is `chat`
        remedy = f"; did you mean {near[0]}?" if near else ""
        print(f"forearm: there is no command {name}{remedy}\n\n{USAGE}", file=sys.stderr)
        return 2
    command = COMMANDS[name]
    run = pkgutil.resolve_name(command) if isinstance(command, str) else command
    status: int = run(words)
    return status


@contextlib.contextmanager
def _cleaned_up_on_sigterm() -> Iterator[None]:
    """Have SIGTERM end the command as Ctrl-C does, so that it leaves no half a file; then die of it, as callers expect.

    A second one kills at once. serve and run-batch handle it themselves once they run.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise _Terminated(128 + signal.SIGTERM)  # the status of a container's first process, which does not die of it

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except _Terminated:
        os.kill(os.getpid(), signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


class _Terminated(SystemExit):
    """SIGTERM has arrived. asyncio passes a SystemExit on at once, unlike other exceptions."""


def generate(argv: Sequence[str]) -> int:
    """`forearm generate [MODEL] [flags]`: the prompt is an argument, a file of messages or standard input."""
    from dataclasses import replace

    from forearm.config import configs
    from forearm.config.flags import CommandParser, read_line

    parser = CommandParser(
        "forearm generate [MODEL] [--prompt] TEXT [flags]",
        "Answer one prompt here, without a server; warnings alone are logged unless --log-level says otherwise.",
    )
    parser.add_argument("--prompt", help="the prompt, also without the flag behind MODEL; absent: standard input")
    parser.add_argument("--messages", metavar="FILE", help="JSON list of chat messages instead; - is standard input")
    parser.add_argument("--raw", action="store_true", help="go on from the prompt as it is, without the chat template")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, help="0 is greedy; absent: the model's own default")
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--stats", action="store_true", help="print tokens and tokens/s after the answer")
    line = read_line(parser, argv, configs.OFFLINE, words=True)
    given: str | None = line.rest.prompt  # "" is a prompt, too: a script's variable may be empty
    if line.words and (given is not None or line.rest.messages):
        raise ConfigError(f"{' '.join(line.words)}: the prompt is given by a flag, too; give one of them")
    from forearm import log
    from forearm.cli.generate import generate

    level = line.configs.engine.logging_level if "logging_level" in line.texts else "WARNING"
    log.set_up(replace(line.configs.engine, logging_level=level), "generate")
    asked: str | list[Any] | None = read_messages(line.rest.messages) if line.rest.messages else None
    if asked is not None and line.rest.raw:
        raise ConfigError("--raw: messages need the chat template; give --prompt instead of --messages")
    names = ("max_tokens", "temperature", "top_p", "top_k")
    sampling = {name: value for name in names if (value := getattr(line.rest, name)) is not None}
    if asked is None:
        given = " ".join(line.words) if line.words else given
        asked = check_text("standard input", sys.stdin.read()) if given is None else check_text("--prompt", given)
    return generate(line.configs, asked, sampling, raw=line.rest.raw, stats=line.rest.stats)


def read_messages(file: str) -> list[Any]:
    """Read the chat messages of --messages; - is standard input.

    Raises: ConfigError if the file cannot be read, or is no JSON list.
    """
    import json
    from pathlib import Path

    try:
        asked = json.loads(sys.stdin.read() if file == "-" else Path(file).read_text())
    except OSError as error:
        raise ConfigError(f"--messages {file}: {error.strerror}; name a JSON list of chat messages") from None
    except ValueError as error:
        raise ConfigError(f"--messages {file}: it is not JSON: {error}") from None
    if not isinstance(asked, list):
        raise ConfigError(f'--messages {file}: it must be a list, as [{{"role": "user", "content": "Hello"}}]')
    return asked


def chat(argv: Sequence[str]) -> int:
    """`forearm chat`: a terminal client of a running server."""
    from forearm.config.flags import CommandParser

    parser = CommandParser("forearm chat [flags]", "Talk to a running server; at a terminal, /help tells more.")
    add_client(parser)
    parser.add_argument("--system-prompt", help="system message before the conversation")
    parser.add_argument("-q", "--quick", metavar="MESSAGE", help="send one message, print the answer, end")
    given = parser.parse_args(argv)
    from forearm.cli.chat import Chat

    with client_of(given) as client:
        return Chat(client, given.max_tokens, given.stats).run(given.system_prompt, given.quick)


def complete(argv: Sequence[str]) -> int:
    """`forearm complete`: a terminal client of a running server's completions."""
    from forearm.config.flags import CommandParser

    parser = CommandParser(
        "forearm complete [flags]", "Have a server continue a text; an empty line or Ctrl-D ends it."
    )
    add_client(parser)
    parser.add_argument("-q", "--quick", metavar="TEXT", help="complete this, print it, end")
    given = parser.parse_args(argv)
    from forearm.cli.complete import complete

    with client_of(given) as client:
        return complete(client, given.quick, given.max_tokens, given.stats)


def run_batch(argv: Sequence[str]) -> int:
    """`forearm run-batch [MODEL] -i FILE -o FILE [flags]`."""
    from forearm.config import configs
    from forearm.config.flags import CommandParser, read_line

    parser = CommandParser(
        "forearm run-batch [MODEL] -i FILE -o FILE [flags]", "Answer a file of requests, one request a line."
    )
    parser.add_argument("-i", "--input-file", required=True, metavar="FILE", help="JSONL; a path, or a URL to GET")
    parser.add_argument("-o", "--output-file", required=True, metavar="FILE", help="a path, or a URL to PUT to")
    parser.add_argument("--output-tmp-dir", metavar="FOLDER", help="for temporary files of URLs")
    parser.add_argument("--max-inflight", type=int, help="requests at a time; absent: twice --max-num-seqs")
    parser.add_argument("--enable-metrics", action="store_true", help="/metrics at --host and --port meanwhile")
    parser.add_argument("--url", default="0.0.0.0", help="old name of --host")
    line = read_line(parser, argv, configs.RUN_BATCH)
    given = line.rest
    if given.max_inflight is not None and given.max_inflight < 1:
        raise ConfigError(f"--max-inflight {given.max_inflight}: it must be at least 1")
    from forearm.cli.run_batch import BatchJob, run_batch

    metrics_host = (line.configs.api.host or given.url) if given.enable_metrics else None
    batch = BatchJob(given.input_file, given.output_file, given.output_tmp_dir, given.max_inflight, metrics_host)
    return run_batch(line.configs, batch, line.notes)


def add_client(parser: CommandParser) -> None:
    """Add the flags that every client of a running server has."""
    parser.add_argument(
        "--url",
        help="address of the server, with or without /v1; absent: the running server of this machine (forearm ps), "
        "else http://localhost:8000",
    )
    parser.add_argument("--model-name", help="model to ask; absent: the server's first one")
    parser.add_argument("--api-key", help="absent: VLLM_API_KEY, or OPENAI_API_KEY")
    parser.add_argument("--stats", action="store_true", help="print tokens and tokens/s after each answer")
    parser.add_argument("--max-tokens", type=int, help="most tokens of an answer")


def client_of(given: Namespace) -> Client:
    """Return a client with the flags of `add_client`; a server that is found here may have any certificate.

    Raises: ConfigError if several servers run, and none is chosen.
    """
    from forearm.cli.client import Client
    from forearm.cli.servers import server_url

    url = given.url or server_url(given.model_name)
    return Client(url, given.model_name, given.api_key, trusting=not given.url)


def completion(argv: Sequence[str]) -> int:
    """`forearm completion bash|zsh|fish`."""
    from forearm.cli.completion import completion

    return completion(argv, COMMANDS)


# Functions of this module, or "module:function" of one that is imported when the command runs. They get the words after
# the command's name and return the exit status.
COMMANDS: dict[str, Callable[[Sequence[str]], int] | str] = {
    "run": "forearm.cli.run:run",
    "serve": "forearm.cli.serve:run",
    "pull": "forearm.cli.stored_models:run_pull",
    "list": "forearm.cli.stored_models:run_list",
    "ls": "forearm.cli.stored_models:run_list",  # Ollama's other name
    "show": "forearm.cli.stored_models:run_show",
    "rm": "forearm.cli.stored_models:run_rm",
    "ps": "forearm.cli.servers:run_ps",
    "stop": "forearm.cli.servers:run_stop",
    "generate": generate,
    "chat": chat,
    "complete": complete,
    "bench": "forearm.bench.command:bench",
    "run-batch": run_batch,
    "plan": "forearm.plan.command:run",
    "doctor": "forearm.doctor.command:run",
    "quantize": "forearm.cli.quantize:run",
    "health": "forearm.cli.health:run",
    "completion": completion,
    "collect-env": "forearm.doctor.command:run",  # vLLM's name
}
