"""The requests of a run: made up (random, prefix_repetition, sonnet) or read from a file (sharegpt, custom).

Names, defaults and lengths are those of vLLM's bench. All random choices depend on the seed alone.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forearm.bench.random_prompts import RandomPrompts
from forearm.errors import ConfigError
from forearm.text.templates.chat_template import ChatTemplate
from forearm.text.tokenizer.tokenizer import Tokenizer

SONNETS = Path(__file__).with_name("sonnets.txt")
SONNET_TASK = "Pick as many lines as you can from these poem lines:\n"
# vLLM's bounds of a ShareGPT conversation.
LEAST_TOKENS, MOST_PROMPT_TOKENS, MOST_TOKENS = 4, 1024, 2048
NOT_READ = "its files come from Hugging Face's hub or need other libraries; write it as a JSONL of prompts: custom"


@dataclass(frozen=True)
class Sample:
    """One request to send. `prompt_tokens` is counted by the client; the server's usage replaces it."""

    prompt: str | list[int]  # token ids: of /v1/completions alone
    prompt_tokens: int
    output_tokens: int
    request_id: str = ""
    others: tuple[str | list[int], ...] = ()  # further prompts of the same request

    @property
    def sequences(self) -> int:
        """Return the number of prompts of this request."""
        return 1 + len(self.others)


@dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """The dataset's options, as the flags of options.add_dataset. `chat`: the server applies the chat template."""

    dataset_name: str = "random"
    dataset_path: str | None = None
    num_prompts: int = 1000
    seed: int = 0
    chat_template_kwargs: dict[str, Any] | None = None
    no_oversample: bool = False
    disable_shuffle: bool = False
    skip_chat_template: bool = False
    request_id_prefix: str = ""
    random_input_len: int = 1024
    random_output_len: int = 128
    random_range_ratio: float = 0.0
    random_prefix_len: int = 0
    random_batch_size: int = 1
    sharegpt_output_len: int | None = None
    custom_output_len: int = 256
    sonnet_input_len: int = 550
    sonnet_output_len: int = 150
    sonnet_prefix_len: int = 200
    prefix_repetition_prefix_len: int = 256
    prefix_repetition_suffix_len: int = 256
    prefix_repetition_num_prefixes: int = 10
    prefix_repetition_output_len: int = 128
    chat: bool = False


@dataclass(frozen=True)
class ModelText:
    """A model's tokenizer and, where it has one, its chat template."""

    tokenizer: Tokenizer
    template: ChatTemplate | None

    def count(self, text: str) -> int:
        """Count the tokens, with those that the tokenizer adds around a prompt."""
        return len(self.tokenizer.encode(text))

    def count_alone(self, text: str) -> int:
        """Count the tokens of the text alone."""
        return len(self.tokenizer.encode(text, add_special_tokens=False))

    def rendered(self, prompt: str, wanted: DatasetOptions) -> str:
        """Apply the chat template, unless the server does that or there is none."""
        if wanted.chat or wanted.skip_chat_template or self.template is None:
            return prompt
        return self.template.render([{"role": "user", "content": prompt}], kwargs=wanted.chat_template_kwargs)


def samples(wanted: DatasetOptions, text: ModelText) -> list[Sample]:
    """Make the requests of a run, with their ids.

    Raises: ConfigError naming the flag or the line of the file.
    """
    make = MAKERS.get(wanted.dataset_name)
    if make is None:
        raise ConfigError(f"--dataset-name {wanted.dataset_name}: {NOT_READ} (there are {', '.join(MAKERS)})")
    made = make(wanted, text)
    if not made:
        raise ConfigError(f"--dataset-path {wanted.dataset_path}: it has no request of a usable length")
    if len(made) < wanted.num_prompts and not wanted.no_oversample and wanted.random_batch_size == 1:
        made = made + random.Random(wanted.seed).choices(made, k=wanted.num_prompts - len(made))
    return [replace(sample, request_id=f"{wanted.request_id_prefix}{i}") for i, sample in enumerate(made)]


def _random(wanted: DatasetOptions, text: ModelText) -> list[Sample]:
    """Make random prompts: a common prefix, then tokens of their own; lengths are uniform around the mean."""
    prompts = RandomPrompts(text.tokenizer, wanted.seed)
    added = len(text.tokenizer.encode(""))
    own = prompts.lengths(max(0, wanted.random_input_len - added), wanted.random_range_ratio, wanted.num_prompts)
    outputs = prompts.lengths(wanted.random_output_len, wanted.random_range_ratio, wanted.num_prompts)
    prefix = prompts.tokens(wanted.random_prefix_len)
    if min(own) + len(prefix) < 1:
        raise ConfigError(f"--random-input-len {wanted.random_input_len}: prompts would be empty; choose more")
    made = (prompts.text([*prefix, *prompts.run(length, i)]) for i, length in enumerate(own))
    single = [Sample(prompt, tokens, max(1, out)) for (prompt, tokens), out in zip(made, outputs, strict=True)]
    return single if wanted.random_batch_size == 1 else _together(single, wanted.random_batch_size)


def _together(single: list[Sample], size: int) -> list[Sample]:
    """Group several prompts into a request, for embeddings."""
    groups = (single[i : i + size] for i in range(0, len(single), size))
    return [
        replace(
            first, prompt_tokens=sum(one.prompt_tokens for one in (first, *rest)), others=tuple(r.prompt for r in rest)
        )
        for first, *rest in groups
    ]


def _prefix_repetition(wanted: DatasetOptions, text: ModelText) -> list[Sample]:
    """Make prefixes, each with its share of the requests, which differ in their suffixes; shuffled."""
    prompts = RandomPrompts(text.tokenizer, wanted.seed)
    share = wanted.num_prompts // wanted.prefix_repetition_num_prefixes
    if share == 0:
        raise ConfigError(
            f"--prefix-repetition-num-prefixes {wanted.prefix_repetition_num_prefixes}: it is more than --num-prompts "
            f"{wanted.num_prompts}"
        )
    made = []
    for _ in range(wanted.prefix_repetition_num_prefixes):
        prefix = prompts.tokens(wanted.prefix_repetition_prefix_len)
        for _ in range(share):
            prompt, tokens = prompts.text([*prefix, *prompts.tokens(wanted.prefix_repetition_suffix_len)])
            made.append(Sample(prompt, tokens, wanted.prefix_repetition_output_len))
    return _shuffled(made, wanted)


def _sonnet(wanted: DatasetOptions, text: ModelText) -> list[Sample]:
    """Make prompts of a poem's lines: the same first ones, then random ones, as many as fit the length."""
    path = Path(wanted.dataset_path) if wanted.dataset_path else SONNETS
    lines = [f"{line}\n" for line in _read(path).splitlines() if line.strip()]
    lengths = [len(text.tokenizer.encode(line, add_special_tokens=False)) for line in lines]
    mean = sum(lengths) / len(lengths)
    base = text.count(text.rendered(SONNET_TASK, wanted))
    if wanted.sonnet_input_len <= base:
        raise ConfigError(f"--sonnet-input-len {wanted.sonnet_input_len}: the question alone has {base} tokens")
    shared = lines[: max(0, round((wanted.sonnet_prefix_len - base) / mean))]
    drawn = max(0, round((wanted.sonnet_input_len - base) / mean) - len(shared))
    rng = random.Random(wanted.seed)
    made = []
    for _ in range(wanted.num_prompts):
        chosen = [*shared, *rng.choices(lines, k=drawn)]
        prompt = text.rendered(SONNET_TASK + "".join(chosen), wanted)
        while (tokens := text.count(prompt)) > wanted.sonnet_input_len and chosen:
            chosen.pop()
            prompt = text.rendered(SONNET_TASK + "".join(chosen), wanted)
        made.append(Sample(prompt, tokens, wanted.sonnet_output_len))
    return made


def _sharegpt(wanted: DatasetOptions, text: ModelText) -> list[Sample]:
    """Read first turns of conversations, whose second turn gives the length of the answer."""
    try:
        entries = json.loads(_read(_path(wanted)))
    except ValueError as error:
        raise ConfigError(f"--dataset-path {wanted.dataset_path}: it is not JSON: {error}") from None
    if not isinstance(entries, list):
        raise ConfigError(f"--dataset-path {wanted.dataset_path}: it is no JSON list of conversations")
    made: list[Sample] = []
    for entry in _shuffled([e for e in entries if len(_turns(e)) >= 2], wanted):
        if len(made) == wanted.num_prompts:
            break
        prompt, answer = _turns(entry)[:2]
        forced = wanted.sharegpt_output_len
        tokens = text.count(prompt)
        output = text.count(answer) if forced is None else forced
        long_enough = tokens >= LEAST_TOKENS and (forced is not None or output >= LEAST_TOKENS)
        if long_enough and tokens <= MOST_PROMPT_TOKENS and tokens + output <= MOST_TOKENS:
            made.append(Sample(prompt, tokens, output))
    return made


def _turns(entry: Any) -> list[str]:
    """Return the turns of one entry of a ShareGPT file; [] if it has none."""
    turns = entry.get("conversations") if isinstance(entry, dict) else None
    values = [turn.get("value") for turn in turns or () if isinstance(turn, dict)]
    return [value for value in values if isinstance(value, str)]


def _custom(wanted: DatasetOptions, text: ModelText) -> list[Sample]:
    """Read JSONL with a prompt in each line, and output_tokens where --custom-output-len is -1."""
    path = _path(wanted)
    entries = []
    for number, line in enumerate(_read(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict) or not isinstance(entry.get("prompt"), str):
            raise ConfigError(f'{path}, line {number}: write a JSON object such as {{"prompt": "What is a glacier?"}}')
        length = entry.get("output_tokens")
        if wanted.custom_output_len == -1 and not (isinstance(length, int) and length > 0):
            raise ConfigError(f"{path}, line {number}: --custom-output-len -1 needs output_tokens in every line")
        entries.append(entry)
    made = []
    for entry in _shuffled(entries, wanted)[: wanted.num_prompts]:
        prompt = text.rendered(entry["prompt"], wanted)
        output = entry["output_tokens"] if wanted.custom_output_len == -1 else wanted.custom_output_len
        made.append(Sample(prompt, text.count(prompt), output))
    return made


def _shuffled(entries: Sequence[Any], wanted: DatasetOptions) -> list[Any]:
    if wanted.disable_shuffle:
        return list(entries)
    return random.Random(wanted.seed).sample(list(entries), len(entries))


def _path(wanted: DatasetOptions) -> Path:
    if not wanted.dataset_path:
        raise ConfigError(f"--dataset-name {wanted.dataset_name}: give its file with --dataset-path")
    return Path(wanted.dataset_path)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--dataset-path {path}: {error}") from None


MAKERS: dict[str, Callable[[DatasetOptions, ModelText], list[Sample]]] = {
    "random": _random,
    "sharegpt": _sharegpt,
    "custom": _custom,
    "sonnet": _sonnet,
    "prefix_repetition": _prefix_repetition,
}
