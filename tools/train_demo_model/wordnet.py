"""Read WordNet's database files (wndb(5WN)) into senses: a word, its definition, examples and neighbours."""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

POS_FILES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
# Glosses that mark a word as abusive or explicit, which a model that is part of a product should not teach.
UNWANTED = re.compile(
    r"offensive|obscene|\bslurs?\b|derogat|disparag|vulgar|taboo|ethnic|sexual|genital|coitus|copulat|prostitut|rape\b|"
    r"penis|vagina|excrement|homosexual|prejudice|racis|Nazi|suicide|masturbat|breasts|erotic",
    re.IGNORECASE,
)
# A first part that only labels the definition that follows: "used of physical heat; having a high temperature".
LABEL = re.compile(r"(used (of|in|as|especially)\b|primarily \w+ sense|of (persons|people|things)\b)")


@dataclass(frozen=True)
class Synset:
    """A meaning. key: part of speech and offset. topic: the number of the lexicographer file (lexnames(5WN))."""

    key: str
    pos: str
    topic: int
    words: tuple[str, ...]
    definition: str
    examples: tuple[str, ...]
    pointers: tuple[tuple[str, str, int, int], ...]  # symbol, synset key, source word, target word (1-based, 0 is all)


@dataclass
class WordNet:
    """The synsets by key, each word's synsets in order of frequency, and the frequency of words."""

    synsets: dict[str, Synset] = field(default_factory=dict)
    senses: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # (word, pos) to synset keys
    tagged: Counter[tuple[str, str]] = field(default_factory=Counter)  # (word, pos) in the sense-tagged corpus
    in_glosses: Counter[str] = field(default_factory=Counter)
    after_article: Counter[str] = field(default_factory=Counter)  # number of times that glosses have "a <word>"


def split_gloss(gloss: str) -> tuple[str, tuple[str, ...]]:
    """Return the first definition, without its text in parentheses, and the quoted examples."""
    examples = tuple(text.strip() for text in re.findall(r'"([^"]+)"', gloss))
    text = re.sub(r'"[^"]*"?', "", gloss)
    text = re.sub(r"\([^()]*\)", "", re.sub(r"\([^()]*\)", "", text))
    parts = [part.strip(" :,-`'") for part in text.split(";")]
    parts = [part for part in parts if part]
    if len(parts) > 1 and LABEL.match(parts[0]):
        parts.pop(0)
    definition = parts[0] if parts else ""
    return re.sub(r"\s+([,.])", r"\1", re.sub(r"\s+", " ", definition)).rstrip("."), examples


def read_synset(line: str) -> Synset:
    """Parse one line of a data file; see wndb(5WN) for the fields."""
    head, _, gloss = line.partition("|")
    fields = head.split()
    word_count = int(fields[3], 16)
    words = tuple(re.sub(r"\(.*\)$", "", fields[4 + 2 * i]).replace("_", " ") for i in range(word_count))
    at = 4 + 2 * word_count
    pointers = []
    for i in range(int(fields[at])):
        symbol, offset, pos, ends = fields[at + 1 + 4 * i : at + 5 + 4 * i]
        pointers.append((symbol, pos + offset, int(ends[:2], 16), int(ends[2:], 16)))
    pos = "a" if fields[2] == "s" else fields[2]
    definition, examples = split_gloss(gloss)
    return Synset(pos + fields[0], pos, int(fields[1]), words, definition, examples, tuple(pointers))


def count_words(net: WordNet) -> None:
    """Count each word in all definitions and examples, and each word after "a" or "an"."""
    for synset in net.synsets.values():
        for text in (synset.definition, *synset.examples):
            words = re.findall(r"[a-z]+", text.lower())
            net.in_glosses.update(words)
            net.after_article.update(b for a, b in pairwise(words) if a in ("a", "an"))


def read_wordnet(folder: Path) -> WordNet:
    """Read the data, index and count files of WordNet 3.0 under `folder`."""
    net = WordNet()
    for pos, name in POS_FILES.items():
        for line in (folder / f"data.{name}").read_text("utf-8").splitlines():
            if not line.startswith("  "):
                synset = read_synset(line)
                net.synsets[synset.key] = synset
        for line in (folder / f"index.{name}").read_text("utf-8").splitlines():
            if not line.startswith("  "):
                fields = line.split()
                keys = [pos + offset for offset in fields[-int(fields[2]) :]]
                net.senses[fields[0].replace("_", " "), pos] = keys
    kinds = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
    for line in (folder / "cntlist.rev").read_text("utf-8").splitlines():
        sense, _, count = line.split()
        word, _, rest = sense.partition("%")
        net.tagged[word.replace("_", " "), kinds[rest[0]]] += int(count)
    count_words(net)
    return net


def is_wanted(synset: Synset) -> bool:
    """Return whether a synset can be taught: its definition has at most 30 words, and it is not abusive."""
    text = " ".join((synset.definition, *synset.words, *synset.examples))
    return 0 < len(synset.definition.split()) <= 30 and not UNWANTED.search(text)


def neighbours(net: WordNet) -> dict[str, dict[str, list[str]]]:
    """Return the neighbours of each synset, as keys by pointer symbol; adjective satellites count as adjectives."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for synset in net.synsets.values():
        for symbol, key, _, _ in synset.pointers:
            found[synset.key][symbol].append(key.replace("s", "a", 1))
    return found
