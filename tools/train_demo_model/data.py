"""The demo model's training data: pools of turns, the held-out turns, conversations and packed rows of tokens."""

import json
import math
import random
import re
import zlib
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from manners import SYSTEM_PROMPTS, manners
from numpy.typing import NDArray
from tokenizers import Tokenizer
from turns import CONCRETE, Sense, Turn, capitals, sums, turns_of
from wordnet import WordNet, is_wanted, read_wordnet

HERE = Path(__file__).parent
COMMON_SENSES = 2260  # about as many as a model learns by heart from 4 million tokens
HELD_OUT_PART = 40  # one of this many synsets, except the common ones, is never trained on
HELD_OUT_TURNS = 400
# The share of turns from each pool; see README.md of the model.
MIXTURE = {"manners": 0.09, "facts": 0.11, "common": 0.54, "rare": 0.26}
IGNORED = -100  # label of a token that is not to be predicted
# Names of families and genera are left out: there are thousands of them, and they are rarely asked for.
WORD = re.compile(r"(?!genus |family |order |class )[a-z][a-z' -]*$(?<! family)(?<! genus)(?<! order)")

Message = dict[str, str]


@dataclass(frozen=True)
class Pick:
    """An entry of common_words.txt: the word's sense (part of speech and rank) and whether it takes an article."""

    pos: str | None
    rank: int
    counted: bool | None


@dataclass(frozen=True)
class Pool:
    """Turns and the running sum of their weights, to draw from by bisection."""

    turns: list[Turn]
    sums: list[float]

    def draw(self, rng: random.Random) -> Turn:
        """Draw a turn with a probability proportional to its weight."""
        return self.turns[bisect(self.sums, rng.random() * self.sums[-1])]


@dataclass(frozen=True)
class Corpus:
    """The pools by name and the conversations held out of all of them."""

    pools: dict[str, Pool]
    held_out: list[list[Message]]


def make_pool(groups: list[tuple[float, list[Turn]]]) -> Pool:
    """Make a pool in which the turns of each group together have the given weight."""
    turns, weights = [], []
    for weight, group in groups:
        total = sum(turn.weight for turn in group)
        turns += group
        weights += [weight * turn.weight / total for turn in group]
    return Pool(turns, list(accumulate(weights)))


def is_held_out(key: str) -> bool:
    """Return whether a synset is held out. A hash of its key decides, so that no list is needed."""
    return zlib.crc32(key.encode()) % HELD_OUT_PART == 0


def picked_sense(net: WordNet, word: str, pick: Pick, usual: Sense) -> Sense:
    """Return the sense that was picked by hand, or else the usual one, with the article that was picked."""
    synset = net.synsets[net.senses[word, pick.pos][pick.rank - 1]] if pick.pos else usual.synset
    return Sense(word, synset, first=True, counted=pick.counted)


def list_senses(net: WordNet, picks: dict[str, Pick]) -> dict[str, list[Sense]]:
    """Return the senses of each lower-case word that can be taught, the most usual one first."""
    order: dict[str, list[tuple[float, str]]] = {}
    for (word, pos), keys in net.senses.items():
        rank = math.log1p(net.tagged[word, pos]) + 0.3 * len(keys) + {"n": 1.0, "v": 0.3, "a": 0.6, "r": 0.5}[pos]
        order.setdefault(word, []).append((rank, pos))
    found: dict[str, list[Sense]] = {}
    for word, ranked in order.items():
        for _, pos in sorted(ranked, reverse=True):
            synset = next((s for s in (net.synsets[k] for k in net.senses[word, pos]) if word in s.words), None)
            if synset and is_wanted(synset) and WORD.match(word):
                found.setdefault(word, []).append(Sense(word, synset, first=word not in found))
        if word in picks and word in found:
            first = picked_sense(net, word, picks[word], found[word][0])
            others = [s for s in found[word] if s.synset.pos != first.synset.pos]
            found[word] = [first, *(Sense(word, s.synset, first=False) for s in others)]
    return found


def score(net: WordNet, sense: Sense) -> float:
    """Return the weight of a sense in questions: frequent words and concrete things have more."""
    word, pos = sense.word, sense.synset.pos
    seen = net.in_glosses[word] if " " not in word else net.in_glosses[word.split()[-1]] / 20
    value = math.log1p(seen) + math.log1p(net.tagged[word, pos]) + (0 if sense.first else -3.5)
    concrete = 1.5 if pos == "n" and sense.synset.topic in CONCRETE else 0
    return value + concrete - 0.1 * max(0, len(sense.synset.definition.split()) - 15) - (1 if len(word) < 3 else 0)


def read_picks() -> dict[str, Pick]:
    """Read common_words.txt: words that new users are likely to try, as `word[:pos rank][+ or -]`."""
    found = {}
    for text in (HERE / "common_words.txt").read_text("utf-8").split():
        match = re.fullmatch(r"([a-z]+)(?::([nvar])(\d))?([+-])?", text)
        assert match, text
        word, pos, rank, counted = match.groups()
        found[word] = Pick(pos, int(rank or 0), None if counted is None else counted == "+")
    return found


def read_corpus(folder: Path) -> Corpus:
    """Build all pools and the held-out turns from WordNet's files under `folder`."""
    net = read_wordnet(folder)
    asked = read_picks()
    by_word = list_senses(net, asked)
    senses = sorted((s for group in by_word.values() for s in group), key=lambda s: (-score(net, s), s.word))
    listed = [s for s in senses if s.word in asked and s.first]
    common = listed + [s for s in senses if not (s.word in asked and s.first)][: COMMON_SENSES - len(listed)]
    chosen = {(s.word, s.synset.key) for s in common}
    rest = [s for s in senses if (s.word, s.synset.key) not in chosen]
    known = {key for _, key in chosen}
    names = {s.synset.key: s for s in reversed(senses)}
    for key in [k for k in names if is_held_out(k) and k not in known]:
        del names[key]
    rare = [s for s in rest if s.synset.key in names]
    unseen = [s for s in rest if s.synset.key not in names]
    common_groups = [
        (2.5 if s.word in asked else max(0.2, score(net, s) / 13), turns_of(net, s, names)) for s in common
    ]
    rare_groups = [(max(0.2, score(net, s) + 1), turns_of(net, s, names)) for s in rare]
    pools = {
        "manners": make_pool([(1.0, [turn]) for turn in manners()]),
        "facts": make_pool([(turn.weight, [turn]) for turn in capitals(net) + sums()]),
        "common": make_pool([(w, group) for w, group in common_groups if group]),
        "rare": make_pool([(w, group) for w, group in rare_groups if group]),
    }
    return Corpus(pools, hold_out(net, unseen))


def hold_out(net: WordNet, unseen: list[Sense]) -> list[list[Message]]:
    """Return a conversation for each of the likeliest unseen senses; a hash chooses its question."""
    found, keys = [], set()
    for sense in unseen:
        turns = turns_of(net, sense, {})
        if sense.synset.key not in keys and turns:
            keys.add(sense.synset.key)
            turn = turns[zlib.crc32(sense.word.encode()) % len(turns)]
            found.append(conversation(None, [turn]))
    return found[:HELD_OUT_TURNS]


def conversation(system: str | None, turns: list[Turn]) -> list[Message]:
    """Return turns as chat messages. system: the system prompt before them, if any."""
    messages = [{"role": "system", "content": system}] if system else []
    for turn in turns:
        messages += [{"role": "user", "content": turn.question}, {"role": "assistant", "content": turn.answer}]
    return messages


def draw_conversation(corpus: Corpus, rng: random.Random) -> list[Message]:
    """Draw a conversation of one to three turns. One in four has a system prompt, most often the usual one."""
    system = None
    if rng.random() < 0.25:
        system = SYSTEM_PROMPTS[0] if rng.random() < 0.5 else rng.choice(SYSTEM_PROMPTS)
    names, weights = list(MIXTURE), list(MIXTURE.values())
    pools = rng.choices(names, weights, k=rng.choice((1, 1, 1, 2, 3)))
    return conversation(system, [corpus.pools[name].draw(rng) for name in pools])


def encode_conversation(tokenizer: Tokenizer, messages: list[Message]) -> tuple[list[int], list[bool]]:
    """Return the token ids that the chat template makes, and whether each is the assistant's, <|im_end|> included."""
    ids: list[int] = []
    said: list[bool] = []
    for message in messages:
        mine = message["role"] == "assistant"
        head = tokenizer.encode(f"<|im_start|>{message['role']}\n").ids
        body = tokenizer.encode(f"{message['content']}<|im_end|>").ids
        tail = tokenizer.encode("\n").ids
        ids += head + body + tail
        said += [False] * len(head) + [mine] * len(body) + [False] * len(tail)
    return ids, said


def pack_rows(
    corpus: Corpus, tokenizer: Tokenizer, rng: random.Random, width: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield rows of whole conversations, each ended by <|endoftext|>, and their labels, the next token of each."""
    (end,) = tokenizer.encode("<|endoftext|>").ids
    waiting: list[tuple[list[int], list[bool]]] = []
    while True:
        row: list[int] = []
        labels: list[int] = []
        waiting += [encode_conversation(tokenizer, draw_conversation(corpus, rng)) for _ in range(24 - len(waiting))]
        for ids, said in list(waiting):
            if len(row) + len(ids) + 1 <= width:
                waiting.remove((ids, said))
                row += [*ids, end]
                labels += [i if mine else IGNORED for i, mine in zip(ids[1:], said[1:], strict=True)] + [IGNORED] * 2
        if not row:
            waiting.clear()  # all of them are longer than a row
            continue
        padding = width - len(row)
        yield np.array(row + [end] * padding), np.array(labels + [IGNORED] * padding)


def write_held_out(corpus: Corpus, path: Path) -> None:
    """Write the held-out conversations, one JSON object {"messages": [...]} per line."""
    lines = [json.dumps({"messages": messages}, ensure_ascii=False) for messages in corpus.held_out]
    path.write_text("\n".join(lines) + "\n", "utf-8")
