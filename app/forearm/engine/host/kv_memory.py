"""The memory of the KV cache: how many blocks, and the longest sequence that they hold."""

from __future__ import annotations

from forearm.config.engine_config import EngineConfig
from forearm.engine.cache.kv_groups import BLOCK_TOKENS, ONE_GROUP, KvGroups
from forearm.engine.host.placement import Memory, in_gib
from forearm.errors import DoesNotFit


def kv_blocks(
    config: EngineConfig,
    model_len: int,
    block_bytes: int,
    needed_bytes: int,
    memory: Memory,
    kept_bytes: int = 0,
    groups: KvGroups = ONE_GROUP,
) -> int:
    """Return how many KV blocks to allocate beside `needed_bytes` (weights and scratch that are not in memory yet).

    If it is not configured, all memory beyond the share that stays free, at most for --max-num-seqs sequences of full
    length, or as many blocks as the engine's first start planned. kept_bytes: the part for copies of states.
    Raises: ConfigError with the arithmetic if the configured size or one sequence of `model_len` tokens does not fit.
    """
    kept_free, parts = kept_free_bytes(config, memory), config.tensor_parallel_size
    room = memory.available_bytes - kept_free - needed_bytes
    why = f"--gpu-memory-utilization {config.memory_utilization:g}"
    if kept_free == config.others_bytes:
        why = "for serve and the API; FOREARM_MAX_BODY_BYTES=8388608 or a lower --api-server-count needs less"
    arithmetic = (
        f"{in_gib(memory.available_bytes)} are free of {in_gib(memory.total_bytes)} ({memory.limited_by}), "
        f"less {in_gib(needed_bytes)} for weights, scratch and grammars, less {in_gib(kept_free)} kept free "
        f"({why}), leaves {in_gib(max(0, room))}"
    )
    asked = None if config.first_kv_blocks else kv_bytes_asked(config)
    if asked is not None and asked > room:
        of_ranks = f" ({parts} ranks of {in_gib(asked // parts)})" if parts > 1 else ""
        raise DoesNotFit(
            f"KV cache of {in_gib(asked)}{of_ranks} does not fit: {arithmetic}. "
            "Lower VLLM_CPU_KVCACHE_SPACE or --kv-cache-memory-bytes, or leave them out"
        )
    sequence = groups.blocks(model_len)
    most = config.first_kv_blocks or config.max_num_seqs * sequence
    most = most if asked is None else (asked - kept_bytes) // block_bytes
    blocks = min((room - kept_bytes) // block_bytes, most)
    if blocks < sequence:
        longest = groups.longest(max(0, blocks), model_len)
        raise DoesNotFit(
            f"one sequence of {model_len} tokens needs {in_gib(sequence * block_bytes)} of KV cache"
            f"{'' if asked is None else f', of {in_gib(asked)} asked for'}: {arithmetic}. "
            f"Use {f'--max-model-len {longest} or less, ' * (longest > 0)}a smaller model or more memory"
        )
    return blocks


def kv_bytes_asked(config: EngineConfig) -> int | None:
    """Return the configured KV cache of all ranks together: the setting is per rank, as in vLLM."""
    return config.kv_cache_memory_bytes and config.kv_cache_memory_bytes * config.tensor_parallel_size


def kept_free_bytes(config: EngineConfig, memory: Memory) -> int:
    """Return the bytes to leave free: the configured share, at least the memory of this server's other processes."""
    return max(int((1 - config.memory_utilization) * memory.total_bytes), config.others_bytes)


def longest(
    config: EngineConfig,
    model_len: int,
    block_bytes: int,
    needed_bytes: int,
    memory: Memory,
    groups: KvGroups = ONE_GROUP,
) -> int:
    """Return the longest sequence that memory allows, at most `model_len` tokens, for --max-model-len auto."""
    left = memory.available_bytes - kept_free_bytes(config, memory) - needed_bytes
    blocks = max(0, min(left, kv_bytes_asked(config) or left) // block_bytes)
    return max(BLOCK_TOKENS, groups.longest(blocks, model_len))
