"""The demo model's tokenizer: byte-level BPE, which can write every byte, on text split as Qwen2 does."""

import random
from collections.abc import Iterator

from data import Corpus, draw_conversation
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 6144
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Source: tokenizer.json of Qwen2; each digit is a token, which makes small sums easier to learn.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SETTINGS: dict[str, object] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": None,
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "unk_token": None,
    "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
    "add_bos_token": False,
    "add_eos_token": False,
    "clean_up_tokenization_spaces": False,
    "model_max_length": 2048,
    "chat_template": TEMPLATE,
}


def sample_text(corpus: Corpus, seed: int, count: int) -> Iterator[str]:
    """Yield questions and answers in the proportions of training."""
    rng = random.Random(seed)
    for _ in range(count):
        for message in draw_conversation(corpus, rng):
            yield message["content"]


def train_tokenizer(corpus: Corpus, seed: int) -> Tokenizer:
    """Learn the merges; ids 0 to 2 are the special tokens, then the 256 bytes."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample_text(corpus, seed, 120_000), trainer)
    return tokenizer
