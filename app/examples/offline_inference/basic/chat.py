"""Answer a conversation, then ten at once: python app/examples/offline_inference/basic/chat.py [--model MODEL]."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from forearm import LLM, SamplingParams
from forearm.offline.outputs import RequestOutput

CONVERSATION = [
    {"role": "system", "content": "You explain words in one short sentence."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hello! Which word may I explain?"},
    {"role": "user", "content": "What is a glacier?"},
]


def show(title: str, outputs: list[RequestOutput]) -> None:
    print(f"\n{title}:\n" + "-" * 60)
    for output in outputs:
        print(f"Prompt: {output.prompt!r}\nAnswer: {output.outputs[0].text!r}\n" + "-" * 60)


def sampling(llm: LLM, args: argparse.Namespace) -> SamplingParams:
    """The model's defaults, with what the command line says instead."""
    names = ("max_tokens", "temperature", "top_p", "top_k")
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    return msgspec.structs.replace(llm.get_default_sampling_params(), **given)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="", help="folder or Hugging Face id; absent: the demo model")
    parser.add_argument("--dtype", default="auto", help="auto, bfloat16, float16 or float32")
    parser.add_argument("--max-model-len", type=int, help="longest prompt and answer together, in tokens")
    parser.add_argument("--max-tokens", type=int)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chat-template-path", type=Path, help="Jinja file to use instead of the model's template")
    args = parser.parse_args()

    llm = LLM(args.model, dtype=args.dtype, max_model_len=args.max_model_len, seed=args.seed)
    params = sampling(llm, args)
    template = args.chat_template_path.read_text() if args.chat_template_path else None

    show("One conversation", llm.chat(CONVERSATION, params, use_tqdm=False, chat_template=template))
    show("Ten at once", llm.chat([CONVERSATION] * 10, params, chat_template=template))


if __name__ == "__main__":
    main()
