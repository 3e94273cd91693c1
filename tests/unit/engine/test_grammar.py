"""Grammars for the engine: compiled once, followed token by token, bounded."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests.api.letters import write_letters
from tests.unit.text.conftest import byte_level, metaspace
from tests.unit.text.test_gguf_tokenizer import byte_level_file, sentencepiece_file

from forearm.engine.constraints.grammar import Grammars, Matcher
from forearm.errors import ConfigError, EngineFailed, InvalidRequest, Overloaded
from forearm.model.checkpoint.hub import DEMO_MODEL
from forearm.text.grammars.constraints import ConstraintRequest, grammar_of
from forearm.text.grammars.grammar_tokens import tokenizer_text
from forearm.text.tokenizer.tokenizer import Tokenizer, load_tokenizer

_VOCABULARY, _EOS = 6144, 2
PERSON = {
    "type": "object",
    "properties": {
        "first name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["alpha beta", "alpha gamma"]},
        "nested": {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]},
    },
    "required": ["first name", "kind", "nested"],
    "additionalProperties": False,
}
GRAMMARS = [
    grammar_of(ConstraintRequest("json", PERSON, "f"), {}),
    grammar_of(
        ConstraintRequest(
            "json", {"type": "array", "items": {"type": "number"}, "maxItems": 9}, "f", any_whitespace=False
        ),
        {},
    ),
    grammar_of(ConstraintRequest("regex", r"colou?r of the sky is (blue|black) and \d{3}-\d{4} is the phone", "f"), {}),
    grammar_of(ConstraintRequest("choice", ["The capital of France", "The capital of Finland", "The"], "f"), {}),
]


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(DEMO_MODEL, _VOCABULARY, [_EOS])


def allowed(mask: np.ndarray) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def begun(grammars: Grammars, source: str) -> Matcher:
    return grammars.start(source).result()


@pytest.mark.parametrize("source", GRAMMARS)
def test_forced_tokens_are_those_that_masks_alone_would_force(grammars: Grammars, source: str) -> None:
    forced_before = 0
    for seed in range(15):
        chance, matcher = random.Random(seed), begun(grammars, source)
        for _ in range(60):
            forced, ahead = matcher.forced(), matcher.fork()
            for token in forced:
                assert allowed(ahead.mask()) == [token]
                ahead.take(token)
            forced_before += len(forced)
            token = chance.choice(allowed(matcher.mask()))
            if token == _EOS or matcher.over:
                break
            matcher.take(token)
    assert forced_before > 20 or "number" in source, "nothing was forced: this shows nothing"


@pytest.mark.parametrize("source", GRAMMARS)
def test_masks_over_drafts_are_those_one_after_the_other(grammars: Grammars, source: str) -> None:
    for seed in range(10):
        chance, matcher = random.Random(seed), begun(grammars, source)
        drafts: list[int] = []
        ahead, one_by_one = matcher.fork(), []
        while not ahead.over and len(drafts) < 12:
            one_by_one.append(ahead.mask())
            drafts.append(chance.choice(allowed(ahead.mask())))
            if drafts[-1] == _EOS:
                break
            ahead.take(drafts[-1])
        before = matcher.mask()

        together = matcher.masks(drafts)
        with_one_wrong = matcher.masks([*drafts[:2], 5000 if 5000 not in allowed(one_by_one[-1]) else 0, *drafts[2:]])

        assert np.array_equal(together[: len(one_by_one)], np.stack(one_by_one))
        assert len(with_one_wrong) <= len(drafts) + 1
        assert np.array_equal(matcher.mask(), before), "the matcher stands where it stood"
        assert matcher.allowed_prefix(drafts) >= len(drafts) - (drafts[-1] == _EOS)


def test_a_fork_goes_its_own_way(grammars: Grammars) -> None:
    matcher = begun(grammars, grammar_of(ConstraintRequest("regex", "(ab|cd)e", "f"), {}))
    fork = matcher.fork()

    matcher.take(next(token for token in allowed(matcher.mask()) if token in allowed(fork.mask())))

    assert not matcher.over
    assert not np.array_equal(matcher.mask(), fork.mask())


def test_it_is_over_where_only_the_end_may_follow_and_not_before(grammars: Grammars) -> None:
    matcher = begun(grammars, grammar_of(ConstraintRequest("regex", "ab?", "f"), {}))
    a, b = 67, 68

    assert allowed(matcher.mask())
    assert not matcher.over
    matcher.take(a)
    assert not matcher.over
    assert allowed(matcher.mask()) == [_EOS, b]
    matcher.take(b)
    assert matcher.over
    assert allowed(matcher.mask()) == [_EOS]
    assert matcher.forced() == []


def test_a_token_that_is_not_allowed_is_an_error_and_stays_one(grammars: Grammars) -> None:
    matcher = begun(grammars, GRAMMARS[0])

    with pytest.raises(EngineFailed, match="grammar"):
        matcher.take(100)
    assert not matcher.over
    with pytest.raises(EngineFailed):
        matcher.mask()


@pytest.mark.parametrize("source", ["start: nobody", "start: /(/", "{", "", "start: /[^\\s\\S]/", "x" * 1000])
def test_a_wrong_grammar_is_the_requests_fault(grammars: Grammars, source: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        begun(grammars, source)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_grammar_that_takes_too_long_is_refused_in_time(tmp_path: Path) -> None:
    grammars = Grammars(DEMO_MODEL, _VOCABULARY, [_EOS], compile_s=0.02)
    begun(grammars, "start: /a/")  # the tokenizer is loaded
    choices = [f"{number} {number * 7919 % 10007}" for number in range(9000)]
    start_s = time.monotonic()

    future = grammars.start(grammar_of(ConstraintRequest("choice", choices, "f"), {}))
    with pytest.raises(InvalidRequest, match=r"longer than 0.02 s"):
        future.result()

    assert time.monotonic() - start_s < 1
    grammars.close()


def test_a_grammar_is_compiled_once_and_the_oldest_are_forgotten() -> None:
    grammars = Grammars(DEMO_MODEL, _VOCABULARY, [_EOS], most_bytes=3 * 150_000)
    sources = [f"start: /a{number}/" for number in range(4)]
    for source in sources:
        begun(grammars, source)

    assert all(grammars.start(source).done() for source in sources[1:])
    assert not grammars.start(sources[0]).done()
    begun(grammars, sources[0])
    assert grammars.start(sources[0]).done()
    grammars.close()


def test_grammars_in_use_are_counted_and_too_many_are_refused() -> None:
    grammars = Grammars(DEMO_MODEL, _VOCABULARY, [_EOS], most_bytes=0)  # nothing stays in the cache
    held: list[Matcher] = []

    def fill() -> None:
        for number in range(1000):
            held.append(begun(grammars, f"start: /a{number}/"))  # noqa: PERF401  (as far as it gets)

    with pytest.raises(Overloaded, match="grammars of open requests"):
        fill()
    assert 50 < len(held) < 150, "16 MiB of some 130 kB each"

    del held[:10]
    again = [begun(grammars, f"start: /b{number}/") for number in range(10)]
    with pytest.raises(Overloaded):
        grammars.start("start: /c/")
    again[0] = held[0] = again[1].fork()  # the last references to two grammars
    begun(grammars, "start: /c/")
    grammars.close()


def test_many_threads_may_ask_at_once(grammars: Grammars) -> None:
    sources = [f"start: /a{number % 5}b/" for number in range(40)]
    with ThreadPoolExecutor(8) as threads:
        matchers = list(threads.map(lambda source: begun(grammars, source), sources))

    masks = {source: matcher.mask().tobytes() for source, matcher in zip(sources, matchers, strict=True)}
    assert len(masks) == 5
    for source, matcher in zip(sources, matchers, strict=True):
        assert matcher.mask().tobytes() == masks[source]


def test_masks_are_as_wide_as_the_models_vocabulary(tmp_path: Path) -> None:
    folder = write_letters(tmp_path)  # 258 tokens
    for vocabulary in (250, 258, 400):
        mask = begun(Grammars(folder, vocabulary, [256]), "start: /.*/").mask()

        assert mask.shape == ((vocabulary + 31) // 32,)
        assert mask.dtype == np.uint32
        assert max(allowed(mask)) < 258


def test_every_end_of_sequence_may_end_a_grammar(tmp_path: Path) -> None:
    matcher = begun(Grammars(write_letters(tmp_path), 258, [256, 257]), "start: /a*/")

    assert allowed(matcher.mask()) == [97, 256, 257]


def test_tokens_that_only_tokenizer_config_has_are_known(tmp_path: Path) -> None:
    folder = write_letters(tmp_path)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {"258": {"content": "<call>", "special": True}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))

    assert allowed(begun(Grammars(folder, 259, [256]), "start: <[258]>").mask()) == [258]
    assert tokenizer_text(folder)[1] == 259


def test_a_folder_without_a_readable_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")

    with pytest.raises(ConfigError, match=str(tmp_path)):
        begun(Grammars(tmp_path, 10, [1]), "start: /a/")


@pytest.mark.parametrize("kind", [byte_level, metaspace])
def test_texts_of_every_kind_of_tokenizer_can_be_written(tmp_path: Path, kind: Callable[[], Tokenizer]) -> None:
    tokenizer = kind()
    tokenizer.as_transformers.save_pretrained(tmp_path)
    ends = [tokenizer.parts.eos_token_id]
    grammars = Grammars(tmp_path, tokenizer.vocab_size, ends)

    check_writable(grammars, tokenizer, ends)


@pytest.mark.parametrize("write", [byte_level_file, sentencepiece_file])
def test_texts_of_a_gguf_files_tokenizer_can_be_written(tmp_path: Path, write: Callable[..., object]) -> None:
    path = tmp_path / "model.gguf"
    write(path, **({"pre": "qwen2"} if write is byte_level_file else {}))
    tokenizer = load_tokenizer(path)
    ends = [tokenizer.parts.eos_token_id]

    check_writable(Grammars(path, tokenizer.vocab_size, ends), tokenizer, ends)


def check_writable(grammars: Grammars, tokenizer: Tokenizer, ends: list[int]) -> None:
    """Check that tokens drawn through the masks form texts of the grammar, with split characters joined."""
    source = grammar_of(
        ConstraintRequest("json", {"type": "array", "items": {"enum": ["naïve café", "日🙂", "the fox"]}}, "f"), {}
    )
    texts = set()
    for seed in range(20):
        chance, matcher = random.Random(seed), begun(grammars, source)
        tokens: list[int] = []
        while len(tokens) < 80 and not matcher.over:
            token = chance.choice(allowed(matcher.mask()))
            if token in ends:
                break
            matcher.take(token)
            tokens.append(token)
        if matcher.over:
            texts.add(b"".join(tokenizer.token_bytes(token) for token in tokens).decode())
    assert len(texts) > 3
    for text in texts:
        assert set(json.loads(text)) <= {"naïve café", "日🙂", "the fox"}
