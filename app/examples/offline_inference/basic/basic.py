"""Go on from a few prompts, without a server: python app/examples/offline_inference/basic/basic.py [--model MODEL]."""

from __future__ import annotations

import argparse

from forearm import LLM, SamplingParams

PROMPTS = [
    "A glacier is",
    "The opposite of cold is",
    "A river that is full of fish",
    "Water boils when",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="", help="folder or Hugging Face id; absent: the demo model")
    parser.add_argument("--dtype", default="auto", help="auto, bfloat16, float16 or float32")
    parser.add_argument("--max-model-len", type=int, help="longest prompt and answer together, in tokens")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--top-p", type=float, default=0.95)
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    llm = LLM(args.model, dtype=args.dtype, max_model_len=args.max_model_len, seed=args.seed)
    params = SamplingParams(
        max_tokens=args.max_tokens, temperature=args.temperature, top_p=args.top_p, top_k=args.top_k
    )
    outputs = llm.generate(PROMPTS, params)

    print("\nGenerated outputs:\n" + "-" * 60)
    for output in outputs:
        print(f"Prompt: {output.prompt!r}\nOutput: {output.outputs[0].text!r}\n" + "-" * 60)


if __name__ == "__main__":
    main()
