"""Three tiny tokenizers, trained on the spot: one of each kind that models have."""

from __future__ import annotations

import json

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from forearm.text.tokenizer.tokenizer import Tokenizer as ForearmTokenizer
from forearm.text.tokenizer.tokenizer_files import TokenizerParts

CORPUS = [
    "the quick brown fox jumps over the lazy dog. The sky is blue because air scatters blue light the most.",
    "A glacier is a slowly moving mass of ice; how are you today?  I am fine, thank you.\n\nNaïve café, déjà vu.",
] * 20
SPECIAL = ["<s>", "</s>", "<|user|>", "<|assistant|>"]


def _wrap(tokenizer: Tokenizer) -> ForearmTokenizer:
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return ForearmTokenizer(TokenizerParts(tokenizer, {"bos_token": "<s>", "eos_token": "</s>"}))


def byte_level() -> ForearmTokenizer:
    """Return a tokenizer of the kind that GPT-2, Llama 3 and Qwen have."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _wrap(tokenizer)


def _byte_fallback(pieces: int) -> Tokenizer:
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "\u2581")
    trainer = trainers.BpeTrainer(vocab_size=pieces, show_progress=False)
    trained.train_from_iterator([" " + line for line in CORPUS], trainer)
    model = trained.model.__getstate__()
    state = json.loads(model)
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    for token in sorted(state["vocab"], key=state["vocab"].__getitem__):
        vocab.setdefault(token, len(vocab))
    merges = [tuple(merge) for merge in state["merges"]]
    return Tokenizer(models.BPE(vocab, merges, byte_fallback=True, fuse_unk=True))


def metaspace() -> ForearmTokenizer:
    """Return a tokenizer like Llama 2's and Mistral's: a space before the text, bytes for unknown characters."""
    tokenizer = _byte_fallback(400)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    wrapped = _wrap(tokenizer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return wrapped


def gemma_like() -> ForearmTokenizer:
    """Return a tokenizer like Gemma's: spaces are kept, and no space is put before the text."""
    tokenizer = _byte_fallback(400)
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return _wrap(tokenizer)


_KINDS = {"byte_level": byte_level, "metaspace": metaspace, "gemma_like": gemma_like}


@pytest.fixture(scope="session", params=_KINDS)
def tokenizer(request: pytest.FixtureRequest) -> ForearmTokenizer:
    return _KINDS[request.param]()


@pytest.fixture(scope="session")
def metaspace_tokenizer() -> ForearmTokenizer:
    return metaspace()


@pytest.fixture(scope="session")
def byte_level_tokenizer() -> ForearmTokenizer:
    return byte_level()
