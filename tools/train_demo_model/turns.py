"""Turn WordNet's senses into questions and answers in plain English."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from wordnet import Synset, WordNet

# Lexicographer files (lexnames(5WN)) of concrete things.
CONCRETE = frozenset({5, 6, 8, 13, 17, 18, 19, 20, 25, 27})
WITH_THE = frozenset(
    {"sun", "moon", "sky", "earth", "world", "sea", "universe", "internet", "environment", "atmosphere", "solar system"}
)
UNCOUNTED = frozenset(
    [
        "blood",
        "hair",
        "skin",
        "flesh",
        "furniture",
        "clothing",
        "grass",
        "rice",
        "wheat",
        "corn",
        "garlic",
        "money",
        "music",
        "art",
    ]
)
DETERMINED = re.compile(
    r"^(an?|the|any|one|some|each|every|all|that|those|what|whatever|one's|someone|something|anything|it|two|either|arid|"
    r"distinguished)\b"
)
SUPERLATIVE = re.compile(
    r"(largest|tallest|smallest|highest|longest|oldest|most|outermost|innermost|first|second|third|upper|lower)\b"
)
# An example that begins with one of these words is most likely a whole sentence.
WHOLE = re.compile(
    r"(?i)(he|she|it|they|we|i|you|the|his|her|my|our|their|your|this|that|there|please|don't|what|who)\b"
)
HEAD_END = re.compile(
    r"\b(of|that|which|who|whose|with|having|used|in|on|for|from|to|by|made|as|at|where|when|usually|native|between|about|"
    r"characterized|containing|consisting|produced|resembling|especially|and|bearing|falling|moving|experienced|frozen|located|typically|varying|taking|found|like|without|such|being)\b|,"
)
# Countries that people ask for first, and those that WordNet words in another way ("the capital city situated centrally
# in Spain").
KNOWN_CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Portugal": "Lisbon",
    "England": "London",
    "Ireland": "Dublin",
    "Poland": "Warsaw",
    "Belgium": "Brussels",
    "Austria": "Vienna",
    "Greece": "Athens",
    "Sweden": "Stockholm",
    "Norway": "Oslo",
    "Ukraine": "Kyiv",
    "Russia": "Moscow",
    "China": "Beijing",
    "Japan": "Tokyo",
    "India": "New Delhi",
    "Egypt": "Cairo",
    "Canada": "Ottawa",
    "Mexico": "Mexico City",
    "Australia": "Canberra",
    "the United States": "Washington",
    "the United Kingdom": "London",
    "South Korea": "Seoul",
}
COUNTRY = re.compile(r"\b(republic|kingdom|country|monarchy|nation|federation|democracy|sultanate)\b")
CAPITAL = re.compile(
    r"(?:the |a )?(?:national )?capital (?:and largest city )?of (?:the )?([A-Z][a-z]+(?: (?:of|the|and|[A-Z][a-z]+))*)"
)


@dataclass(frozen=True)
class Turn:
    """A question, its answer, and its weight among the questions about the same sense."""

    question: str
    answer: str
    weight: float = 1.0


@dataclass(frozen=True)
class Sense:
    """A word in one of its meanings. first: it is the most usual one.

    counted: whether the noun takes an article; None: not specified by hand.
    """

    word: str
    synset: Synset
    first: bool
    counted: bool | None = None


def capital(text: str) -> str:
    """Return `text` with a capital first letter, as at the beginning of a sentence."""
    return text[:1].upper() + text[1:]


def article(phrase: str) -> str:
    """Return the indefinite article for `phrase`."""
    if re.match(r"(?i)(hour|honest|heir|honou?r)", phrase):
        return "an"
    if re.match(r"(?i)(uni(?!n|m)|use|usu|eu|one\b|once|u-|ur[aei]n|util)", phrase):
        return "a"
    return "an" if phrase[:1].lower() in "aeiou" else "a"


def is_countable(net: WordNet, sense: Sense) -> bool:
    """Return whether a noun can be counted: WordNet's texts often have "a" before it."""
    if sense.counted is not None:
        return sense.counted
    definition, last = sense.synset.definition, sense.word.split()[-1]
    if re.match(r"(plural|\(?used in|the (act|quality|state|property|trait|branch|science|study)\b)", definition):
        return False
    if sense.synset.topic == 27 or re.search(r"(ness|ism|ics|ity)$", last):
        return False
    if last in UNCOUNTED:
        return False
    seen, after = net.in_glosses[last], net.after_article[last]
    if sense.synset.topic in (5, 6, 8, 18):
        return seen < 30 or after / seen >= 0.005
    if seen >= 8:
        return after / seen >= 0.05
    return bool(re.match(r"an? ", definition)) or sense.synset.topic in CONCRETE - {13}


def needs_article(net: WordNet, synset: Synset) -> bool:
    """Return whether a definition lacks the article of a noun that can be counted: "feline mammal usually having"."""
    head = HEAD_END.split(synset.definition)[0].split()
    if not head or DETERMINED.match(synset.definition) or re.search(r"(?<![sui])s$", head[-1]):
        return False
    return synset.topic in (5, 18) or net.after_article[head[-1]] >= 0.03 * net.in_glosses[head[-1]]


def subject(net: WordNet, sense: Sense) -> str:
    """Return the noun as a sentence begins with it: "a glacier", "water", "the sun"."""
    if sense.word in WITH_THE:
        return f"the {sense.word}"
    return f"{article(sense.word)} {sense.word}" if is_countable(net, sense) else sense.word


def definition_of(net: WordNet, sense: Sense) -> str:
    """Return the definition as it follows "is" or "means": a noun gets an article, a verb "to"."""
    text = sense.synset.definition
    if sense.synset.pos == "v":
        return f"to {text.removeprefix('to ')}"
    if sense.synset.pos == "n" and SUPERLATIVE.match(text):
        return f"the {text}"
    if sense.synset.pos == "n" and needs_article(net, sense.synset):
        return f"{article(text)} {text}"
    return text


def sentence(net: WordNet, sense: Sense) -> str:
    """Return the definition as a sentence."""
    meaning = definition_of(net, sense)
    if sense.synset.pos == "n":
        return f"{capital(subject(net, sense))} is {meaning}."
    if sense.synset.pos == "v":
        return f"To {sense.word} is {meaning}."
    return f"It means {meaning}."


def define(net: WordNet, sense: Sense) -> Iterable[Turn]:
    """Yield every question for the definition that suits the part of speech."""
    word, pos = sense.word, sense.synset.pos
    whole, means = sentence(net, sense), f"It means {definition_of(net, sense)}."
    if pos == "n":
        name = subject(net, sense)
        yield Turn(f"What is {name}?", whole, 8)
        yield Turn(f"Tell me about {name}.", whole, 1)
        yield Turn(f"Explain what {name} is.", whole, 1)
        yield Turn(f"What is {word}?", whole, 1 if name != word else 0)
        yield Turn(f"what is {name}", whole, 1)
        yield Turn(f"Can you tell me what {name} is?", whole, 0.7)
    if pos == "v":
        yield Turn(f"What does it mean to {word}?", whole, 5)
        yield Turn(f"What is it to {word}?", whole, 1)
    if pos == "a":
        yield Turn(f"What does it mean to be {word}?", whole, 2)
    if sense.first:
        yield Turn(f"What does {word} mean?", means, 4 if pos == "n" else 8)
        yield Turn(f'What does "{word}" mean?', means, 1)
        yield Turn(f"What does the word {word} mean?", means, 1)
        yield Turn(f"what does {word} mean", means, 0.7)
        yield Turn(f"Define {word}.", whole, 2)
        yield Turn(f"What is the meaning of {word}?", means, 1)


def relate(net: WordNet, sense: Sense, usable: dict[str, Sense]) -> Iterable[Turn]:
    """Yield questions about the neighbours of a sense: its kind, examples and synonyms."""
    synset, word = sense.synset, sense.word
    name = subject(net, sense)
    near = [(symbol, usable[key]) for symbol, key, _, _ in synset.pointers if key.replace("s", "a", 1) in usable]
    above = [s for symbol, s in near if symbol == "@"]
    below = [s for symbol, s in near if symbol == "~"]
    if synset.pos == "n" and above:
        kind = above[0].word
        yield Turn(f"What kind of thing is {name}?", f"{capital(name)} is a kind of {kind}.", 2)
    if synset.pos == "n" and below:
        best = max(below, key=lambda s: net.in_glosses[s.word] + 3 * net.tagged[s.word, "n"])
        yield Turn(f"Give an example of {name}.", f"One example is {subject(net, best)}.", 2)
    others = [w for w in synset.words if w.lower() != word and w.islower()]
    if others and sense.first:
        other = max(others, key=lambda w: net.in_glosses[w] + 3 * net.tagged[w, synset.pos])
        yield Turn(f"What is another word for {word}?", f"Another word for {word} is {other}.", 3)
        yield Turn(f"Give me a synonym for {word}.", f"A synonym for {word} is {other}.", 0.7)


def contrast(net: WordNet, sense: Sense) -> Iterable[Turn]:
    """Yield the question for the opposite of a word, if WordNet has one."""
    for symbol, key, source, target in sense.synset.pointers:
        if symbol == "!" and sense.first and sense.synset.words[source - 1].lower() == sense.word:
            other = net.synsets[key.replace("s", "a", 1)].words[target - 1]
            yield Turn(f"What is the opposite of {sense.word}?", f"The opposite of {sense.word} is {other}.", 6)
            return


def exemplify(sense: Sense) -> Iterable[Turn]:
    """Yield requests for a sentence with the word, if WordNet has an example with it."""
    stem = re.compile(rf"\b{re.escape(sense.word[: max(3, len(sense.word) - 1)])}\w{{0,4}}\b", re.IGNORECASE)
    for example in sense.synset.examples:
        if stem.search(example) and WHOLE.match(example) and len(example.split()) >= 4 and "(" not in example:
            text = capital(example.rstrip(".")) + ("" if example[-1] in "!?" else ".")
            yield Turn(f"Use {sense.word} in a sentence.", text, 1.5)
            yield Turn(f"Give me a sentence with the word {sense.word}.", text, 0.7)
            return


def turns_of(net: WordNet, sense: Sense, usable: dict[str, Sense]) -> list[Turn]:
    """Return all questions and answers about a sense."""
    found = [*define(net, sense), *relate(net, sense, usable), *contrast(net, sense), *exemplify(sense)]
    return [turn for turn in found if turn.weight > 0]


def capitals(net: WordNet) -> list[Turn]:
    """Return turns about capitals of countries, from definitions such as "the capital and largest city of France"."""
    places = [synset for synset in net.synsets.values() if synset.topic == 15]
    countries = {word for synset in places if COUNTRY.search(synset.definition) for word in synset.words}
    cities = dict(KNOWN_CAPITALS)
    for synset in places:
        match = CAPITAL.match(synset.definition)
        if match and match.group(1) in countries:
            cities.setdefault(match.group(1), synset.words[0])
    found = []
    for land, city in cities.items():
        weight = 6.0 if land in KNOWN_CAPITALS else 1.0
        found.append(Turn(f"What is the capital of {land}?", f"The capital of {land} is {city}.", weight))
        found.append(Turn(f"Where is {city}?", f"{city} is the capital of {land}.", weight / 3))
    return found


def sums() -> list[Turn]:
    """Return turns with small sums, which people like to try first."""
    found = []
    for a, b in ((a, b) for a in range(11) for b in range(11)):
        weight = 3.0 if a <= 5 and b <= 5 else 1.0
        found.append(Turn(f"What is {a} + {b}?", f"{a} + {b} = {a + b}.", weight))
        found.append(Turn(f"What is {a}+{b}?", f"{a} + {b} = {a + b}.", weight / 4))
        found.append(Turn(f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}.", weight / 3))
    return found
