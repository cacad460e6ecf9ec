"""Facts hidden in prose and asked for: one, one among several of its kind, and a short question in other words. All names
and numbers are made up."""

import re

from .ruler import Item, distinct, generator, largest
from .words import ADJECTIVES, NOUNS

KINDS = ("needle", "multikey", "qa")
NEW_TOKENS = 16
MULTIKEY = 4
PEOPLE = "Ada Boris Clara Dmitri Elena Farid Greta Hugo Ines Jonas Kira Leon Mira Nadia Oskar Paula Quentin Rosa Stefan Tilda".split()  # fmt: skip
TOWNS = "Altmark Brennick Carvale Dunmere Eastholm Fairwick Grenlow Harstead Ilverton Jarrow Kelby Lundale Marwick Norwell".split()  # fmt: skip
# What is told, what is asked, how the answer begins.
FACTS = (
    ("{who} of {where} keeps an old {what} under the bed.", "What does {who} of {where} keep under the bed?", " {who} keeps an old"),
    ("In {where}, {who} won the first prize with a {what}.", "With what did {who} win the first prize in {where}?", " {who} won the first prize with a"),
    ("{who} came to {where} to buy a {what} at the market.", "What did {who} come to {where} to buy?", " {who} came to {where} to buy a"),
    ("Every evening {who} of {where} paints a picture of a {what}.", "What is in the pictures that {who} of {where} paints?", " In the pictures is a"),
)  # fmt: skip


def codes(rng, count):
    keys = distinct(rng, lambda r: f"{r.choice(ADJECTIVES)} {r.choice(NOUNS)}", count)
    values = distinct(rng, lambda r: str(r.randint(10000, 99999)), count)
    return [
        (f"The pass code of the {key} is {value}.", f"What is the pass code of the {key}?", f" The pass code of the {key} is", value)
        for key, value in zip(keys, values, strict=True)
    ]  # fmt: skip


def facts(rng, prose):
    """One that is asked for; its answer is no word of the prose."""
    who, where = rng.choice(PEOPLE), rng.choice(TOWNS)
    what = rng.choice([noun for noun in NOUNS if noun not in prose])
    return [tuple(text.format(who=who, where=where, what=what) for text in rng.choice(FACTS)) + (what,)]


def sentences(text):
    """Of prose, without line breaks."""
    return [s for s in re.split(r"(?<=[.!?]) +", re.sub(r"\s+", " ", text).strip()) if s]


def make_item(kind, length, number, documents, count_tokens):
    """Item `number`, of one of the documents in their turn: the facts in as much prose as fits `length` tokens
    with the answer. The first fact is asked for."""
    if kind not in KINDS:
        raise ValueError(f"there is no kind '{kind}': must be one of {', '.join(KINDS)}")
    prose = sentences(documents[number % len(documents)].text)
    seed = ("retrieval", kind, length, number)
    rng = generator(*seed)
    told = facts(rng, " ".join(prose).lower()) if kind == "qa" else codes(rng, MULTIKEY if kind == "multikey" else 1)
    places = [rng.random() for _ in told]
    start = rng.random()

    def item(n):
        begin = round(start * max(0, len(prose) - n))
        units = prose[begin : begin + n]
        size = len(units)
        for place, fact in sorted(zip(places, told), reverse=True):
            units.insert(round(place * size), fact[0])
        head = "Read the text below. You will be asked a question about it.\n\n" + " ".join(units)
        return Item(f"{head}\n\n{told[0][1]}", told[0][2], (told[0][3],), len(head))

    def fits(n):
        made = item(n)
        return n <= len(prose) and count_tokens(made.question, made.prefix) <= length - NEW_TOKENS

    n = largest(fits, 1)
    if n == 0:
        raise ValueError(f"a question and one sentence do not fit {length} tokens: choose a greater --length")
    return item(n)
