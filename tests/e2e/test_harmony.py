"""gpt-oss from its checkpoint to the answer: a tiny one that has learned two conversations, served without a flag.

Its special tokens have the ids of openai/gpt-oss-20b; its template tells harmony (text/tool_parsers/harmony.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
import tokenizers
import torch
from tests.e2e.served import Served, serve
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import GptOssConfig, GptOssForCausalLM

SPECIAL = {
    "<|startoftext|>": 199998, "<|endoftext|>": 199999, "<|return|>": 200002, "<|constrain|>": 200003,
    "<|channel|>": 200005, "<|start|>": 200006, "<|end|>": 200007, "<|message|>": 200008, "<|call|>": 200012,
}  # fmt: skip
TEMPLATE = (
    "{% for tool in tools or [] %}<|start|>developer<|message|>{{ tool.function.name }}<|end|>{% endfor %}"
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>"
    "{{ m.content }}<|end|>{% endfor %}<|start|>assistant"
)
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "sky", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
ASKED, CALLED = "What is a glacier?", "Is it dry in Bern?"
ANSWER = (
    "<|channel|>analysis<|message|>Ice.<|end|><|start|>assistant<|channel|>final<|message|>Ice that flows.<|return|>"
)
CALL = (
    "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary to=functions.sky "
    '<|constrain|>json<|message|>{"city": "Bern"}<|call|>'
)
GENERATION = {"bos_token_id": 199998, "eos_token_id": [200002, 199999, 200012], "pad_token_id": 199999}


def bytes_tokenizer() -> tokenizers.Tokenizer:
    """Return a tokenizer of bytes, and of harmony's special tokens."""
    alphabet = {letter: i for i, letter in enumerate(sorted(ByteLevel.alphabet()))}
    made = tokenizers.Tokenizer(BPE(alphabet | SPECIAL, []))
    made.pre_tokenizer, made.decoder = ByteLevel(add_prefix_space=False, use_regex=False), ByteLevelDecoder()
    made.add_special_tokens(list(SPECIAL))
    return made


def learned(conversations: list[tuple[list[int], list[int]]], own_vocab: int, config: dict[str, Any]) -> Any:
    """Return a model that answers each prompt with its answer, greedily: token ids below own_vocab."""
    torch.manual_seed(0)
    model = GptOssForCausalLM(GptOssConfig(**config, vocab_size=own_vocab))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(400):
        losses = []
        for prompt, answer in conversations:
            labels = torch.tensor([[-100] * len(prompt) + answer])
            losses.append(model(input_ids=torch.tensor([prompt + answer]), labels=labels).loss)
        loss = torch.stack(losses).mean()
        if loss.item() < 0.02:
            return model
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    raise AssertionError(f"the loss is still {loss.item():.3g}")


def make_model(folder: Path) -> None:
    """Write the model, its tokenizer, template and generation_config.json."""
    tokenizer = bytes_tokenizer()
    assert tokenizer.token_to_id("<|call|>") == SPECIAL["<|call|>"]
    template = jinja2.Template(TEMPLATE)
    texts = [
        (template.render(messages=[{"role": "user", "content": ASKED}]), ANSWER),
        (template.render(messages=[{"role": "user", "content": CALLED}], tools=[TOOL]), CALL),
    ]
    pairs = [tuple(tokenizer.encode(text, add_special_tokens=False).ids for text in pair) for pair in texts]
    used = sorted({token for pair in pairs for ids in pair for token in ids})
    own = {token: i for i, token in enumerate(used)}
    config: dict[str, Any] = {
        "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16,
        "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 1024,
        "sliding_window": 32, "eos_token_id": 200002, "pad_token_id": None, "initializer_range": 0.1,
    }  # fmt: skip
    model = learned(
        [([own[t] for t in prompt], [own[t] for t in answer]) for prompt, answer in pairs], len(used), config
    )
    state = model.state_dict()
    with torch.device("meta"):
        whole = GptOssForCausalLM(GptOssConfig(**config, vocab_size=201088))
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = torch.zeros(201088, 64)
        rows[used] = state[name]
        state[name] = rows
    whole.load_state_dict(state, assign=True)
    whole.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "eos_token": "<|return|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("gpt-oss")
    make_model(folder)
    flags = ("--model", str(folder), "--served-model-name", "gpt-oss", "--max-model-len", "512")
    with serve(tmp_path_factory.mktemp("harmony"), *flags) as running:
        yield running


def streamed(served: Served, content: str, **fields: Any) -> list[dict[str, Any]]:
    """Return the choices of all chunks."""
    text = served.chat(content, stream=True, **fields).text
    chunks = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    return [choice for chunk in chunks for choice in chunk["choices"]]


def test_an_answer_has_its_reasoning_and_ends_at_return(served: Served) -> None:
    reply = served.chat(ASKED, temperature=0, max_tokens=300).json()

    message = reply["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("Ice.", "Ice that flows.")
    assert reply["choices"][0]["finish_reason"] == "stop"
    deltas = streamed(served, ASKED, temperature=0, max_tokens=300)
    assert "".join(one["delta"].get("reasoning", "") for one in deltas) == "Ice."
    assert "".join(one["delta"].get("content", "") for one in deltas) == "Ice that flows."


def test_a_call_ends_at_the_token_that_generation_config_names(served: Served) -> None:
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 300, "tools": [TOOL]}
    choice = served.chat(CALLED, **fields).json()["choices"][0]

    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning"] == "Look."
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("sky", {"city": "Bern"})
    deltas = streamed(served, CALLED, **fields)
    parts = [call["function"] for one in deltas for call in one["delta"].get("tool_calls", [])]
    assert "".join(part.get("arguments") or "" for part in parts) == call["function"]["arguments"]
    assert deltas[-1]["finish_reason"] == "tool_calls"
