"""Measure a published model folder: held-out loss, how many definitions it knows by heart, and some answers.

python measure.py --model ../../app/forearm/demo_model --wordnet /usr/share/wordnet
"""

import argparse
import json
import math
from pathlib import Path

import torch
from data import Message, list_senses, read_picks
from tokenizers import Tokenizer
from train import held_out_loss
from transformers import AutoTokenizer, Qwen2ForCausalLM
from turns import define
from wordnet import read_wordnet

QUESTIONS = (
    "Hello!",
    "Who are you?",
    "Why is the sky blue?",
    "What is a glacier?",
    "What is a volcano?",
    "What is water?",
    "What is a computer?",
    "What is a guitar?",
    "what is a cat",
    "What is love?",
    "What does happy mean?",
    "What does generous mean?",
    "Define telescope.",
    "What does it mean to swim?",
    "Tell me about the moon.",
    "What is another word for big?",
    "What is the opposite of hot?",
    "Give an example of a fruit.",
    "What kind of thing is a whale?",
    "Use tea in a sentence.",
    "What is the capital of France?",
    "Where is Madrid?",
    "What is 2 + 2?",
    "What is 7 plus 6?",
    "How many days are in a week?",
    "Tell me a joke.",
    "What is the weather today?",
    "What is an astronaut?",
    "What is a processor?",
    "Thank you",
)


class Answerer:
    """A published model folder, loaded as its users load it."""

    def __init__(self, folder: Path) -> None:
        self.model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        self.text = AutoTokenizer.from_pretrained(folder)
        (self.end,) = self.text.encode("<|im_end|>", add_special_tokens=False)

    @torch.no_grad()
    def answer(self, question: str, system: str | None) -> str:
        """Return the greedy answer, of at most 64 tokens."""
        messages: list[Message] = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": question})
        prompt = self.text.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = self.text.encode(prompt, add_special_tokens=False)
        start = len(ids)
        while len(ids) < start + 64 and ids[-1] != self.end:
            logits = self.model(input_ids=torch.tensor([ids]), use_cache=False).logits
            ids.append(int(logits[0, -1].argmax()))
        return str(self.text.decode(ids[start:], skip_special_tokens=True))


def known_by_heart(answerer: Answerer, wordnet: Path) -> float:
    """Return the share of words in common_words.txt whose first definition the model gives word for word."""
    net, picks = read_wordnet(wordnet), read_picks()
    senses = list_senses(net, picks)
    turns = [max(define(net, senses[word][0]), key=lambda turn: turn.weight) for word in picks if word in senses]
    return sum(answerer.answer(turn.question, None) == turn.answer for turn in turns) / len(turns)


def main() -> None:
    """Read the command line and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a folder that publish.py wrote")
    parser.add_argument("--wordnet", type=Path, help="also count the definitions known by heart (some minutes)")
    parser.add_argument("--system", help="system prompt for the sample answers")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    answerer = Answerer(arguments.model)
    for question in QUESTIONS:
        print(f"| {question} | {answerer.answer(question, arguments.system)} |")
    held_out = [
        json.loads(line)["messages"] for line in (arguments.model / "heldout.jsonl").read_text("utf-8").splitlines()
    ]
    loss = held_out_loss(answerer.model, Tokenizer.from_file(str(arguments.model / "tokenizer.json")), held_out)
    print(f"held-out loss {loss:.4f}, perplexity {math.exp(loss):.2f}")
    if arguments.wordnet:
        print(f"known by heart: {known_by_heart(answerer, arguments.wordnet):.1%}")


if __name__ == "__main__":
    main()
