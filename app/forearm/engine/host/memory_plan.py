"""The memory plan of a model, made before its weights are read, for the engine's start and for `forearm plan`.

A model that fits by this plan starts: the native module gives the sizes of scratch and KV blocks, for the tier in use
or, for another machine, the largest of any tier.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forearm import _native
from forearm.config.engine_config import EngineConfig
from forearm.config.speculative import Drafting, drafting_asked
from forearm.engine.cache.kv_groups import ONE_GROUP, KvGroups, blocks_for
from forearm.engine.host import kv_memory, placement
from forearm.engine.host.client_memory import grammar_bytes, inbox_bytes
from forearm.engine.scheduler import StepLimits
from forearm.errors import ConfigError
from forearm.model.checkpoint.calibration import calibration_bytes
from forearm.model.checkpoint.checkpoint import Checkpoint, open_checkpoint
from forearm.model.families.keys import ROPE
from forearm.model.modules.open import needs_transformers, open_modules
from forearm.model.pooling.pooling import asked_of, pooling_plan
from forearm.model.predictor import borrowing
from forearm.model.quantization.quantization import Asked

# The least rows of logits of a step: prompts whose log-probabilities are wanted advance by this many tokens a step.
LEAST_ROWS = 32
# Tokens of a step if no budget is configured. Of 16 prompts of 128 tokens at once the first tokens come after 2.5 s
# on average instead of 3.9 with 2048, and all are done as early (Zen 4, 0.5B, bf16; 1.4 and 2.0 s in 4 bits). With
# 128 or 256 on two cores it is the same to 4 % better, but many cores need rows. Pooling texts delay no other output,
# but the rows of a layer should stay in near caches: 64 texts of 32 tokens by bge-base in int8 are 8 % faster than with
# 2048 and 6 % faster than with 512; MiniLM and texts of 512 tokens take as long (a Xeon with AMX, two cores).
STEP_TOKENS, POOLED_STEP_TOKENS = 512, 1024
TARGET_ITL_S = 0.15  # if none is configured (docs/reliability.md)
# Copies of states: the part of the KV cache's memory for them, and the most that are of use: the last prompt and the
# last answer of a conversation take one each.
_STATES_SHARE, _STATES_PER_SEQUENCE, _FEW_STATES = 8, 4, 64
_DRAFTED_OUTPUTS = 16  # outputs whose full drafts a step verifies; with more outputs drafts are shorter

# llguidance's memory for a vocabulary, allocated with the first grammar: resident memory grew by 13 MiB for 6,144
# tokens, by 116 MiB for 151,936 (x86-64, llguidance 1.9.1).
_VOCABULARY_BYTES, _VOCABULARY_BYTES_A_TOKEN = 10 << 20, 770

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fit:
    """A checkpoint at the context length it is served with, and its memory.

    draft             what drafts for it, with the matrices that it keeps itself
    state_bytes       states that layers keep of running sequences, before drafts, and copies in the prefix cache
    kept_states       these copies
    draft_bytes       weights and scratch of the draft model; its keys and values are in block_bytes
    vocabulary_bytes  the vocabulary for grammars, allocated with the first grammar
    grammar_bytes     most bytes of compiled grammars
    inbox_bytes       most bytes of requests in the inbox
    blocks            of the KV cache; of each group of layers, if limits.groups are several
    """

    checkpoint: Checkpoint
    draft: Checkpoint | None
    limits: StepLimits
    scratch_bytes: int
    state_bytes: int
    kept_states: int
    draft_bytes: int
    vocabulary_bytes: int
    grammar_bytes: int
    inbox_bytes: int
    block_bytes: int
    blocks: int
    memory: placement.Memory


def fit(
    config: EngineConfig,
    folder: Path,
    memory: placement.Memory,
    threads: int,
    draft: Checkpoint | None = None,
    any_tier: bool = False,
) -> Fit:
    """Return the checkpoint at the configured context length, or at the longest that memory allows.

    draft: the draft model, which takes memory as well, and as many KV blocks.
    any_tier: plan for another machine, whose tier may need more scratch.
    Raises: ConfigError with the arithmetic if weights, scratch and one sequence of that length do not fit.
    """
    asked = config.max_model_len
    checkpoint = _opened(config, folder, asked if isinstance(asked, int) else None)
    draft = borrowing(draft, checkpoint) if draft and draft.config.fuses else draft
    groups = groups_of(config, checkpoint, draft)
    block_bytes = _native.kv_block_bytes(checkpoint.config, checkpoint.kv_dtype, groups.count > 1)
    block_bytes += kv_bytes(draft) if draft else 0
    drafted = 0
    if draft:
        drafted = draft.packed_bytes + scratch_bytes(draft, limits_of(config, checkpoint), threads, any_tier)
    vocabulary, grammars, inbox = 0, 0, inbox_bytes(memory)
    if not checkpoint.config.pooled:  # a pooling model generates no text
        vocabulary = _VOCABULARY_BYTES + _VOCABULARY_BYTES_A_TOKEN * checkpoint.config.vocab_size
        grammars = grammar_bytes(config, memory)
    calibrated = [one.config for one in (checkpoint, draft) if one and one.calibrated]
    calibrating = max((calibration_bytes(one, threads, any_tier) for one in calibrated), default=0)
    state_bytes = state_slot_bytes(checkpoint)
    states = state_bytes * sequence_states(config)
    beside = drafted + states + max(vocabulary + grammars + inbox, calibrating)  # calibration ends before they begin
    if asked == "auto":
        needed = checkpoint.packed_bytes + scratch_bytes(checkpoint, limits_of(config, checkpoint), threads, any_tier)
        needed += beside
        length = kv_memory.longest(config, checkpoint.max_model_len, block_bytes, needed, memory, groups)
        if length < checkpoint.max_model_len:
            log.warning(
                "context: %d tokens of the model's %d, the most that memory allows", length, checkpoint.max_model_len
            )
            checkpoint = _opened(config, folder, length)
    limits = limits_of(config, checkpoint, draft)
    scratch = scratch_bytes(checkpoint, limits, threads, any_tier)
    needed = checkpoint.packed_bytes + scratch + beside
    blocks, kept = cache_of(config, checkpoint, limits.groups, block_bytes, needed, memory)
    if checkpoint.config.pooled:  # no keys outlive a step: blocks of the largest one, where each text begins a block
        blocks = blocks_for(limits.step_tokens) + limits.running
    states += kept * state_bytes
    taken = (scratch, states, kept, drafted, vocabulary, grammars, inbox, block_bytes, blocks)
    return Fit(checkpoint, draft, limits, *taken, memory)


def sequence_states(config: EngineConfig) -> int:
    """Return how many slots of states sequences need: one each, and those before the drafts of a step."""
    drafted = 0 if drafting_asked(config) is None else min(config.max_num_seqs, _DRAFTED_OUTPUTS)
    return config.max_num_seqs + drafted


def cache_of(
    config: EngineConfig,
    checkpoint: Checkpoint,
    groups: KvGroups,
    block_bytes: int,
    needed: int,
    memory: placement.Memory,
) -> tuple[int, int]:
    """Return the KV blocks, of `block_bytes`, and the copies of states to allocate beside `needed` bytes.

    Raises: ConfigError with the arithmetic if one sequence does not fit, or not beside the copies that are configured.
    """
    length, asked = checkpoint.max_model_len, config.state_cache_slots
    blocks = kv_memory.kv_blocks(config, length, block_bytes, needed, memory, groups=groups)
    state_bytes = state_slot_bytes(checkpoint)
    if not state_bytes or checkpoint.config.pooled or not config.enable_prefix_caching:
        return blocks, 0
    room = memory.available_bytes - kv_memory.kept_free_bytes(config, memory) - needed
    spare = min(room, kv_memory.kv_bytes_asked(config) or room) - groups.blocks(length) * block_bytes
    kept = min(blocks * block_bytes // _STATES_SHARE, spare) // state_bytes
    kept = min(kept, max(_FEW_STATES, _STATES_PER_SEQUENCE * config.max_num_seqs))
    if asked is not None and asked * state_bytes > spare:
        raise ConfigError(
            f"--state-cache-slots {asked}, of {state_bytes} bytes each: beside a sequence of {length} tokens the KV "
            f"cache has room for {spare // state_bytes}; lower it, or leave it out"
        )
    kept = kept if asked is None else asked
    return kv_memory.kv_blocks(config, length, block_bytes, needed, memory, kept * state_bytes, groups), kept


def draft_checkpoint(config: EngineConfig, drafting: Drafting, folder: Path) -> Checkpoint:
    """Open the draft model in `folder`, to be served beside the model, or the layer of the model there that predicts.

    Raises: ConfigError naming its fault.
    """
    asked = Asked(drafting.quantization, config.quantization_embeddings, config.quantization_activations)
    if drafting.predicts and needs_transformers(folder, config.model_impl, False):
        raise ConfigError(f"--speculative-config: transformers computes {folder}; take the method ngram, not mtp")
    return open_checkpoint(
        folder,
        dtype=config.dtype,
        kv_dtype=config.kv_cache_dtype,
        quantization=asked,
        ignore_unread=config.ignore_unread_tensors,
        rope=_rope(config) if drafting.predicts else None,
        predicts=drafting.predicts,
    )


def groups_of(config: EngineConfig, checkpoint: Checkpoint, draft: Checkpoint | None = None) -> KvGroups:
    """Return the groups of layers that have KV blocks of their own; one group that keeps all tokens where prompts are
    computed whole.

    draft: its keys and values are at the numbers of the first whole group's blocks, and every block has room for them.
    If there is no whole group, or a sequence of full length would take more, one group keeps all tokens.
    """
    if _whole_prompts(config, checkpoint):
        return ONE_GROUP
    reaches, length = _native.kv_reaches(checkpoint.config, checkpoint.kv_dtype), checkpoint.max_model_len
    groups = KvGroups.of(reaches, _step_tokens(config, checkpoint), length)
    if draft is None or groups == ONE_GROUP:
        return groups
    page = _native.kv_block_bytes(checkpoint.config, checkpoint.kv_dtype, True) + kv_bytes(draft)
    undivided = blocks_for(length) * (kv_bytes(checkpoint) + kv_bytes(draft))
    return groups if groups.whole and groups.blocks(length) * page < undivided else ONE_GROUP


def kv_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of the keys and values of 32 tokens in all layers."""
    return _native.kv_block_bytes(checkpoint.config, checkpoint.kv_dtype)


def state_slot_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of the states that layers keep of one sequence."""
    return _native.state_bytes(checkpoint.config)


def limits_of(config: EngineConfig, checkpoint: Checkpoint, draft: Checkpoint | None = None) -> StepLimits:
    """Return the limits of a step, which never has more tokens than all running sequences together. draft: the draft
    model beside it.
    """
    pooled, step_tokens = checkpoint.config.pooled, _step_tokens(config, checkpoint)
    drafting = drafting_asked(config)
    # Rows of logits for drafts are bounded, since steps with many outputs are compute-bound.
    draft_rows = 0 if drafting is None else drafting.tokens * min(config.max_num_seqs, _DRAFTED_OUTPUTS)
    return StepLimits(
        step_tokens=step_tokens,
        running=config.max_num_seqs,
        step_rows=step_tokens if pooled else max(config.max_num_seqs, LEAST_ROWS) + draft_rows,
        slice_tokens=0 if pooled else config.long_prefill_token_threshold,
        whole_prompts=_whole_prompts(config, checkpoint),
        target_itl_s=TARGET_ITL_S if config.target_itl_s is None else config.target_itl_s,
        groups=groups_of(config, checkpoint, draft),
    )


def _whole_prompts(config: EngineConfig, checkpoint: Checkpoint) -> bool:
    return checkpoint.config.pooled or bool(checkpoint.own_cache) or not config.enable_chunked_prefill


def _step_tokens(config: EngineConfig, checkpoint: Checkpoint) -> int:
    budget = config.max_num_batched_tokens
    if budget is None:
        budget = POOLED_STEP_TOKENS if checkpoint.config.pooled else max(STEP_TOKENS, config.max_num_seqs)
    step_tokens = min(budget, config.max_num_seqs * checkpoint.max_model_len)
    return max(step_tokens, checkpoint.max_model_len) if _whole_prompts(config, checkpoint) else step_tokens


def scratch_bytes(checkpoint: Checkpoint, limits: StepLimits, threads: int, any_tier: bool = False) -> int:
    """Return the bytes of a step's buffers besides the KV cache; `any_tier`: the most on any CPU."""
    return _native.scratch_bytes(
        checkpoint.config, checkpoint.multiplied, checkpoint.formats, limits.step_tokens, limits.step_rows,
        checkpoint.max_model_len, threads, any_tier,
    )  # fmt: skip


def _opened(config: EngineConfig, folder: Path, max_model_len: int | None) -> Checkpoint:
    asked: dict[str, Any] = {
        "dtype": config.dtype,
        "kv_dtype": config.kv_cache_dtype,
        "max_model_len": max_model_len,
        "allow_longer": config.allow_long_max_model_len,
        "quantization": Asked(config.quantization, config.quantization_embeddings, config.quantization_activations),
    }
    rope, drafting = _rope(config), drafting_asked(config)
    plan = pooling_plan(folder, asked_of(config))
    if needs_transformers(folder, config.model_impl, plan is not None):
        if rope:
            raise ConfigError(f"{folder}: transformers reads the rotary angles from config.json; change them there")
        return open_modules(folder, **asked, trust_remote_code=config.trust_remote_code, pooling=plan)
    opened = open_checkpoint(folder, **asked, pooling=plan, ignore_unread=config.ignore_unread_tensors, rope=rope)
    keeps_hidden = drafting is not None and drafting.predicts
    return replace(opened, config=replace(opened.config, keeps_hidden=True)) if keeps_hidden else opened


def _rope(config: EngineConfig) -> dict[str, Any]:
    """Return the changes to the rotary angles that are configured, by config.json's names."""
    rope = {name: value for name, value in (config.hf_overrides or {}).items() if name in ROPE}
    flags = {"rope_scaling": config.rope_scaling, "rope_theta": config.rope_theta}
    return rope | {name: value for name, value in flags.items() if value is not None}
