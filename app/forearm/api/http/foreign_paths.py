"""Counterparts of paths that clients of Ollama, llama-server, TGI and vLLM ask for and this server does not have.

docs/from-ollama.md, docs/from-llama-cpp.md and docs/from-vllm.md have the same counterparts.
"""

from __future__ import annotations

_COMMANDS = "Ollama's API is not served: models are managed by the commands forearm pull, list, show and rm"
_NO_SLEEP = "this server neither sleeps nor pauses: requests of low priority can wait (--scheduling-policy priority)"
_NO_LORA = "there are no LoRA adapters: merge the adapter into the model"
_ONE_MODEL = "one server serves one model: start another one with its own --port"
_TEXT_ONLY = "only text is served"


def _ollama(there: str) -> str:
    return f"Ollama's API is not served: use {there}"


_ROWS: dict[str, str] = {
    # Ollama
    "/api/chat": _ollama("/v1/chat/completions"),
    "/api/generate": _ollama("/v1/completions"),
    "/api/embed /api/embeddings": _ollama("/v1/embeddings"),
    "/api/tags /api/ps /api/show": _ollama("GET /v1/models"),
    "/api/version": _ollama("GET /version"),
    "/api/pull /api/push /api/create /api/copy /api/delete": _COMMANDS,
    # llama-server
    "/completion": "use /v1/completions, whose limit is max_tokens",
    "/infill": "use /v1/completions with suffix",
    "/embedding": "use /v1/embeddings",
    "/reranking /v1/reranking": "use /v1/rerank",
    "/apply-template": "use /tokenize with messages, whose tokens /detokenize makes text",
    "/props": "use GET /v1/models",
    "/slots": "use GET /load: it tells how many requests are open",
    "/lora-adapters": _NO_LORA,
    "/models/load /models/unload": _ONE_MODEL,
    # TGI and text-embeddings-inference
    "/embed /embed_all": "use /v1/embeddings",
    "/predict": "use /classify",
    "/similarity": "use /score",
    "/generate /generate_stream": "use /v1/completions",
    "/info": "use GET /v1/models",
    # vLLM, and OpenAI through vLLM
    "/server_info /reset_prefix_cache": "start the server with VLLM_SERVER_DEV_MODE=1",
    "/start_profile /stop_profile": "start the server with --profiler-config",
    "/tokenizer_info": "start the server with --enable-tokenizer-info-endpoint",
    "/sleep /wake_up /is_sleeping /pause /resume /is_paused": _NO_SLEEP,
    "/v1/load_lora_adapter /v1/unload_lora_adapter": _NO_LORA,
    "/v1/chat/completions/render /v1/completions/render": "use /tokenize, whose tokens /v1/completions takes as prompt",
    "/inference/v1/generate": "use /v1/completions, whose prompt may be token ids",
    "/v1/audio/transcriptions /v1/audio/translations /v1/audio/speech /v1/images/generations /v1/realtime": _TEXT_ONLY,
    "/v1/batches /v1/files": "the command forearm run-batch answers a file of requests",
    "/v2/embed": "Cohere's API is not served: use /v1/embeddings",
    "/v1/chat /v2/chat": "Cohere's API is not served: use /v1/chat/completions",
}
COUNTERPARTS: dict[str, str] = {path: told for paths, told in _ROWS.items() for path in paths.split()}
