"""Remedies of flags that forearm does not have: counterparts of llama-server's, or the nearest name.

REMEDIES has the flags that llama-server's users write most, by the names of llama.cpp's tools/server/README.md, as
docs/from-llama-cpp.md has them. Without them the nearest name would be one of another meaning, and argparse reads
`-ngl` as vLLM's `-n`.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection

_ON_CPUS = "leave it out: forearm runs on CPUs"
_IN_MEMORY = "leave it out: weights are always in main memory"
_ALWAYS = "leave it out: it is always so"
_TEXT = "leave it out: only text is served"
_DEFAULTS = "--override-generation-config"

_ROWS: dict[str, str] = {
    "-m": "name the model without a flag, or write --model",
    "-hf -hfr --hf-repo": "name the model without a flag: owner/name:Q4_K_M",
    "-hff --hf-file -mu --model-url": "name the .gguf file, or owner/name:Q4_K_M, without a flag",
    "-hft": "write --hf-token",
    "-a --alias": "write --served-model-name",
    "-c --ctx-size": "write --max-model-len",
    "-np --parallel": "write --max-num-seqs",
    "-b --batch-size -ub": "write --max-num-batched-tokens",
    "--predict --n-predict": f"""write {_DEFAULTS} '{{"max_new_tokens": 512}}'""",
    "--temp --temperature": f"""write {_DEFAULTS} '{{"temperature": 0.6}}'""",
    "--top-k": f"""write {_DEFAULTS} '{{"top_k": 20}}'""",
    "--top-p": f"""write {_DEFAULTS} '{{"top_p": 0.9}}'""",
    "--min-p": f"""write {_DEFAULTS} '{{"min_p": 0.05}}'""",
    "--repeat-penalty": f"""write {_DEFAULTS} '{{"repetition_penalty": 1.1}}'""",
    "--presence-penalty": f"""write {_DEFAULTS} '{{"presence_penalty": 1.5}}'""",
    "--frequency-penalty": f"""write {_DEFAULTS} '{{"frequency_penalty": 0.5}}'""",
    "-s": "write --seed",
    "-t --threads -tb --threads-batch": "set the variable OMP_NUM_THREADS",
    "-C --cpu-mask -Cr --cpu-range": "set the variable VLLM_CPU_OMP_THREADS_BIND, for example to 0-29",
    "--numa": "leave it out: each NUMA node of the engine's cores has a rank; see --tensor-parallel-size",
    "-ctk -ctv --cache-type-k --cache-type-v": "write --kv-cache-dtype int8 or fp8, for keys and values",
    "-md --model-draft": "write --spec-method draft_model --spec-model MODEL",
    "--chat-template-file": "write --chat-template",
    "--chat-template-kwargs": "write --default-chat-template-kwargs",
    "--jinja -fa --flash-attn -cb --cont-batching --cache-prompt --metrics": _ALWAYS,
    "--no-cache-prompt": "write --no-enable-prefix-caching",
    "--reasoning-format": "write --reasoning-parser auto",
    "--reasoning-budget": "leave it out: requests have thinking_token_budget",
    "--embedding --embeddings": "leave it out for an embedding model; write --runner pooling for one that generates",
    "--pooling": """write --runner pooling --pooler-config '{"pooling_type": "MEAN"}'""",
    "--rerank --reranking": "leave it out: a model that reranks is served so",
    "--api-key-file": "write --api-keys-file, of YAML, JSON or TOML",
    "--ssl-key-file": "write --ssl-keyfile",
    "--ssl-cert-file": "write --ssl-certfile",
    "--no-webui --no-ui": "write --no-playground",
    "--webui --ui": "leave it out: the page is at /",
    "--api-prefix": "write --root-path",
    "--threads-http": "write --api-server-count",
    "-v --verbose --log-verbose": "write --log-level DEBUG",
    "--mlock --no-mmap --mmap": _IN_MEMORY,
    "-ngl --gpu-layers --n-gpu-layers -sm --split-mode -ts --tensor-split -mg --main-gpu -dev": _ON_CPUS,
    "-ot --override-tensor -cmoe --cpu-moe -ncmoe --n-cpu-moe": _ON_CPUS,
    "--rope-freq-base": "write --rope-theta",
    "--rope-scale --yarn-orig-ctx": """write --rope-scaling '{"rope_type": "yarn", "factor": 4}'""",
    "--lora --lora-scaled": "merge the adapter into the model: there are no LoRA adapters",
    "-mm --mmproj -mmu --mmproj-url --no-mmproj": _TEXT,
    "--slots --no-slots --props --slot-save-path": "leave it out: there are no slots to see or to save",
    "--context-shift --no-context-shift --keep": "leave it out: an answer stops at the end of the context",
    "--swa-full": "leave it out: layers with a window keep its keys alone, and prefixes are shared all the same",
    "--cache-reuse": "leave it out: prompts share what they begin with, and nothing behind a difference",
    "-kvu --kv-unified": "leave it out: all sequences share one KV cache",
    "--draft --draft-n --draft-max": "write --spec-tokens",
    "--warmup --no-warmup": "leave it out: nothing is compiled at the first request",
}
REMEDIES: dict[str, str] = {flag: remedy for flags, remedy in _ROWS.items() for flag in flags.split()}


def remedy(flag: str, known: Collection[str], dashes: str = "--") -> str:
    """Return the end of the error for an unknown flag: what to write instead; nothing where no known name is near.

    dashes: what stands before a suggested name.
    """
    if flag in REMEDIES:
        return f", which is llama-server's; {REMEDIES[flag]}"
    return nearest(flag, known, dashes)


def nearest(flag: str, known: Collection[str], dashes: str = "--") -> str:
    """Return the question after the nearest known name; nothing where none is near. dashes: as of `remedy`."""
    names = [name.removeprefix("--") for name in known if name.startswith("--")]
    word = flag.lstrip("-")  # `-port` is --port; a short flag has no name to compare
    # Nearer than difflib's 0.6, of which `block-size` is to `ctx-size`.
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.7) if len(word) > 3 else []
    return f"; did you mean {dashes}{near[0]}?" if near else ""
