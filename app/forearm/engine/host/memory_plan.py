"""What a model takes of memory, before a byte of its weights is read: the engine's start and `forearm plan` ask here.

What fits here starts: scratch is counted as native/model/scratch.cpp divides it, and where that depends on the tier,
for the larger form.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from forearm.config.engine_config import EngineConfig
from forearm.config.speculative import Drafting, drafting_asked
from forearm.engine.blocks import BLOCK_TOKENS
from forearm.engine.host import placement
from forearm.engine.host.client_memory import grammar_bytes, inbox_bytes
from forearm.engine.scheduler import StepLimits
from forearm.model.checkpoint.checkpoint import Checkpoint, open_checkpoint
from forearm.model.families.config import ModelConfig, WeightFormat
from forearm.model.families.overrides import rope_changes
from forearm.model.pooling.pooling import asked_of, pooling_plan
from forearm.model.quantization.quantization import Asked

# Rows of logits of a step, at least: prompts whose log-probabilities are wanted go forward by so many tokens a step.
LEAST_ROWS = 32
# Tokens of a step where no budget is asked for. Of 16 prompts of 128 tokens at once the first tokens come after 2.5 s
# on average instead of 3.9 with 2048, and all are done no later (Zen 4, 0.5B shape, bf16; 1.4 and 2.0 s in int4). With
# 128 or 256 on two cores it is the same to 4 % better, but many cores want rows. Texts to embed hold nobody up.
STEP_TOKENS, POOLED_STEP_TOKENS = 512, 2048
_DRAFTED_OUTPUTS = 16  # whole drafts of which a step verifies; more outputs have shorter ones

# native/model/scratch.h, kernels.h: rows that a thread prepares for itself, keys of one partial result, most of them.
_OWN_ROWS, _CHUNK_TOKENS, _MOST_PARTIAL_FLOATS = 4, 512, 16 << 20
_PANEL, _MAXIMUM_LOGITS = 16, 64  # kernels.h
# What llguidance makes of a vocabulary with the first grammar: resident memory grew by 13 MiB for one of 6,144 tokens,
# by 116 MiB for 151,936 (x86-64, llguidance 1.9.1).
_VOCABULARY_BYTES, _VOCABULARY_BYTES_A_TOKEN = 10 << 20, 770
_THREAD_BYTES = 512 << 10  # what attend and gemm work in, beside a panel of codes (tests/unit/engine/test_fit.py)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fit:
    """A checkpoint at the context length it is served with, and its memory.

    draft_bytes       weights and scratch of the draft model; its keys and values are in block_bytes
    vocabulary_bytes  what grammars will need of the vocabulary, once a request brings the first one
    grammar_bytes     of compiled grammars, at most
    inbox_bytes       of requests that were not looked at yet, at most
    blocks            of the KV cache
    """

    checkpoint: Checkpoint
    limits: StepLimits
    scratch_bytes: int
    draft_bytes: int
    vocabulary_bytes: int
    grammar_bytes: int
    inbox_bytes: int
    block_bytes: int
    blocks: int
    memory: placement.Memory


def fit(
    config: EngineConfig, folder: Path, memory: placement.Memory, threads: int, draft: Checkpoint | None = None
) -> Fit:
    """The checkpoint at the context length that is asked for, or that memory allows.

    draft: of the draft model, which takes memory beside it and as many KV blocks.
    Raises: ConfigError with the arithmetic if weights, scratch and one sequence of that length do not fit.
    """
    asked = config.max_model_len
    checkpoint = _opened(config, folder, asked if isinstance(asked, int) else None)
    block_bytes = kv_bytes(checkpoint) + (kv_bytes(draft) if draft else 0)
    drafted = draft.packed_bytes + scratch_bytes(draft, limits_of(config, checkpoint), threads) if draft else 0
    vocabulary, inbox = vocabulary_bytes(checkpoint), inbox_bytes(memory)
    grammars = 0 if checkpoint.config.pooled else grammar_bytes(config, memory)
    beside = drafted + vocabulary + grammars + inbox
    if asked == "auto":
        needed = checkpoint.packed_bytes + scratch_bytes(checkpoint, limits_of(config, checkpoint), threads)
        needed += beside
        length = placement.longest(config, checkpoint.max_model_len, block_bytes, needed, memory)
        if length < checkpoint.max_model_len:
            log.warning(
                "context: %d tokens of the model's %d, which is what memory allows", length, checkpoint.max_model_len
            )
            checkpoint = _opened(config, folder, length)
    limits = limits_of(config, checkpoint)
    scratch = scratch_bytes(checkpoint, limits, threads)
    needed = checkpoint.packed_bytes + scratch + beside
    blocks = placement.kv_blocks(config, checkpoint.max_model_len, block_bytes, needed, memory)
    if checkpoint.config.pooled:  # nothing is kept between steps: what the fullest one takes, where texts begin blocks
        blocks = -(-limits.step_tokens // BLOCK_TOKENS) + limits.running
    return Fit(checkpoint, limits, scratch, drafted, vocabulary, grammars, inbox, block_bytes, blocks, memory)


def draft_checkpoint(config: EngineConfig, drafting: Drafting, folder: Path) -> Checkpoint:
    """The draft model in `folder`, as it is served beside the model.

    Raises: ConfigError naming what is wrong with it.
    """
    asked = Asked(drafting.quantization, config.quantization_embeddings, config.quantization_activations)
    return open_checkpoint(
        folder,
        dtype=config.dtype,
        kv_dtype=config.kv_cache_dtype,
        quantization=asked,
        ignore_unread=config.ignore_unread_tensors,
    )


def vocabulary_bytes(checkpoint: Checkpoint) -> int:
    """What the engine will hold of the vocabulary for grammars; nothing where no text is generated."""
    model = checkpoint.config
    return 0 if model.pooled else _VOCABULARY_BYTES + _VOCABULARY_BYTES_A_TOKEN * model.vocab_size


def kv_bytes(checkpoint: Checkpoint) -> int:
    """Bytes of one block of keys and values."""
    return checkpoint.config.kv_bytes_per_token[checkpoint.kv_dtype] * BLOCK_TOKENS


def limits_of(config: EngineConfig, checkpoint: Checkpoint) -> StepLimits:
    """A step's limits. No step has more tokens than all running sequences together."""
    pooled = checkpoint.config.pooled
    budget = config.max_num_batched_tokens
    if budget is None:
        budget = POOLED_STEP_TOKENS if pooled else max(STEP_TOKENS, config.max_num_seqs)
    step_tokens = min(budget, config.max_num_seqs * checkpoint.max_model_len)
    whole = pooled or not config.enable_chunked_prefill
    if whole:
        step_tokens = max(step_tokens, checkpoint.max_model_len)
    return StepLimits(
        step_tokens=step_tokens,
        running=config.max_num_seqs,
        step_rows=step_tokens if pooled else max(config.max_num_seqs, LEAST_ROWS) + _draft_rows(config),
        slice_tokens=0 if pooled else config.long_prefill_token_threshold,
        whole_prompts=whole,
        target_itl_s=config.target_itl_s,
    )


def _draft_rows(config: EngineConfig) -> int:
    """Rows of logits for drafts. With many outputs open a step is bound by arithmetic, and drafts are not worth it."""
    drafting = drafting_asked(config)
    return 0 if drafting is None else drafting.tokens * min(config.max_num_seqs, _DRAFTED_OUTPUTS)


def scratch_bytes(checkpoint: Checkpoint, limits: StepLimits, threads: int) -> int:
    """Bytes of everything that a step writes besides the KV cache, at most (native/model/scratch.cpp)."""
    model, tokens = checkpoint.config, limits.step_tokens + 1
    query, key = model.heads * model.head_dim, model.kv_heads * model.head_dim
    joint = sum(-(-columns // _PANEL) * _PANEL for columns in (query, key, key))
    after = model.norm_placement != "pre" or model.learned_positions or model.token_types > 0
    shared = _floats(tokens, model.hidden) * (2 if after else 1) + _floats(tokens, joint)
    shared += _floats(limits.step_rows, model.hidden if model.pooled else model.vocab_size) + 4 * tokens
    shared += 0 if model.pooled else _floats(limits.step_rows, -(-model.vocab_size // _MAXIMUM_LOGITS))
    shared += sum(8 * tokens * len(rope.inv_freq) for rope in model.ropes)
    sites = (
        (("qkv", "up", "head"), model.hidden, max(tokens, limits.step_rows), False),
        (("o",), query, tokens, True),
        (("down",), model.intermediate, tokens, True),
    )
    for names, columns, rows, raw in sites:
        formats = _formats_of(checkpoint.formats, names)
        own = threads * _inputs(formats, columns, _OWN_ROWS)
        prepares = raw and any(_rounds(format) or format.ordered for format in formats)
        shared += own + _inputs(formats, columns, rows) + (_floats(rows, columns) if prepares else 0)
    return shared + 4 * _partial_floats(model, checkpoint.max_model_len, threads) + threads * _own_bytes(model)


def _opened(config: EngineConfig, folder: Path, max_model_len: int | None) -> Checkpoint:
    return open_checkpoint(
        folder,
        dtype=config.dtype,
        kv_dtype=config.kv_cache_dtype,
        max_model_len=max_model_len,
        allow_longer=config.allow_long_max_model_len,
        quantization=Asked(config.quantization, config.quantization_embeddings, config.quantization_activations),
        pooling=pooling_plan(folder, asked_of(config)),
        ignore_unread=config.ignore_unread_tensors,
        rope=rope_changes(config),
    )


def _floats(rows: int, columns: int) -> int:
    """Bytes of float32 [rows, columns], rows an odd number of 64-byte lines apart."""
    return rows * ((columns + 15) // 16 | 1) * 64


def _formats_of(formats: dict[str, WeightFormat], names: tuple[str, ...]) -> set[WeightFormat]:
    """Of the matrices that take the rows of one place; a tied head is the embedding."""
    found = {format for name, format in formats.items() if name.rpartition(".")[2] in names}
    return found | ({formats["embed"]} if "head" in names and "head" not in formats else set())


def _rounds(format: WeightFormat) -> bool:
    """Whether it is multiplied with int8 activations."""
    return format.dtype in ("int8", "int4") and not format.wide


def _inputs(formats: set[WeightFormat], columns: int, rows: int) -> int:
    """Rows in each form that matrices take: int8 with a scale and a sum for each group, or floats."""
    int8 = [format for format in formats if _rounds(format)]
    groups = max((-(-columns // f.group) if f.group else 1 for f in int8), default=0)
    codes = rows * (_floats(1, -(-columns // 4)) + 8 * groups) if int8 else 0
    return codes + (_floats(rows, columns) if len(int8) < len(formats) else 0)


def _partial_floats(model: ModelConfig, max_model_len: int, threads: int) -> int:
    """Partial results of attention over chunks of keys: two items a thread."""
    item = model.heads // model.kv_heads * (2 + -(-model.head_dim // 16) * 16)
    chunks = -(-max_model_len // _CHUNK_TOKENS)
    return min((2 * threads + model.kv_heads) * chunks * item, _MOST_PARTIAL_FLOATS)


def _own_bytes(model: ModelConfig) -> int:
    """Of one thread: a row, a panel of codes of the widest matrix with its factors, what the sampler takes."""
    widest = max(model.hidden, model.intermediate, model.heads * model.head_dim)
    return 4 * model.hidden + 2 * _PANEL * widest + (0 if model.pooled else 25 * model.vocab_size) + _THREAD_BYTES
