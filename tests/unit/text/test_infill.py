from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from forearm.text.tokenizer.fill_in_middle import infill_of
from forearm.text.tokenizer.tokenizer import Tokenizer as ForearmTokenizer
from forearm.text.tokenizer.tokenizer_files import TokenizerParts


def coder(*special: str, bos: str = "") -> ForearmTokenizer:
    """One token a letter, and these."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: number for number, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in (*special, bos) if text])
    if bos:
        ids = [(bos, tokenizer.token_to_id(bos))]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=ids)
    return ForearmTokenizer(TokenizerParts(tokenizer, {}))


@pytest.mark.parametrize(
    ("special", "shown"),
    [
        (
            ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
            "<|fim_prefix|>in front<|fim_suffix|>behind<|fim_middle|>",
        ),
        (("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), "<fim_prefix>in front<fim_suffix>behind<fim_middle>"),
        (
            ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
            "<｜fim▁begin｜>in front<｜fim▁hole｜>behind<｜fim▁end｜>",
        ),
        (("[SUFFIX]", "[PREFIX]"), "[SUFFIX]behind[PREFIX]in front"),
    ],
)
@pytest.mark.parametrize("bos", ["", "<s>"])
def test_each_family_marks_the_middle_with_its_own_tokens(special: tuple[str, ...], shown: str, bos: str) -> None:
    tokenizer = coder(*special, bos=bos)
    infill = infill_of(tokenizer)
    assert infill is not None

    ids = infill.prompt(tokenizer.encode("in front"), "behind")

    assert tokenizer.decode(ids, skip_special_tokens=False) == bos + shown
    assert len(ids) == len("in frontbehind") + len(special) + bool(bos)


def test_what_ends_a_file_ends_the_middle() -> None:
    tokenizer = coder("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>")
    infill = infill_of(tokenizer)

    assert infill is not None
    assert [tokenizer.token_text(one) for one in infill.stops] == ["<|file_sep|>"]


def test_a_model_without_such_tokens_fills_nothing_in() -> None:
    assert infill_of(coder("<s>")) is None
