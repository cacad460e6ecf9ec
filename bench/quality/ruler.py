"""Six of RULER's synthetic tasks (arXiv 2404.06654), made offline: their construction and scoring, in our own words and with
our own word list.

A task fills a length: as much haystack as fits `limit` tokens with the tokens of the answer. An item is a function of the
task, the length, its number and the model's tokenizer, nothing else.
"""

import dataclasses
import hashlib
import json
import math
import random
import string
import uuid

from .words import ADJECTIVES, NOUNS, VERBS

NOISE = ("The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again.")
# Tokens an answer may have.
NEW_TOKENS = {"niah_single_1": 128, "niah_multikey_2": 128, "niah_multikey_3": 128, "vt": 30, "cwe": 120, "fwe": 50}
TASKS = tuple(NEW_TOKENS)
HOPS = 4


class TooFewWords(ValueError):
    """An item of that size takes more words than there are."""


@dataclasses.dataclass(frozen=True)
class Item:
    question: str  # the whole prompt of a chat's user
    prefix: str  # how the answer begins, given
    references: tuple[str, ...]
    split: int = 0  # characters of `question` before the question itself is asked

    def gold(self):
        """The continuation whose log-likelihood is measured."""
        return " " + ", ".join(self.references)

    @property
    def digest(self):
        parts = [self.question, self.prefix, self.references, self.split]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def generator(*parts):
    """A random generator that is a function of the parts, on any machine."""
    return random.Random(hashlib.sha256("/".join(map(str, parts)).encode()).digest())


def largest(fits, first=1):
    """The largest n with fits(n), found by doubling and halving; 0 where not even fits(1)."""
    low, high = 0, first
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def match_all(answer, references):
    """The share of references that the answer contains, whatever their case."""
    return sum(r.lower() in answer.lower() for r in references) / len(references)


def match_any(answer, references):
    return float(any(r.lower() in answer.lower() for r in references))


# --- needle in a haystack ---


def word_key(rng):
    return f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}"


def number_value(rng):
    return str(rng.randint(10**6, 10**7 - 1))


def uuid_value(rng):
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def needle(kind, key, value):
    return f"One of the special magic {kind}s for {key} is: {value}."


def distinct(rng, make, count, taken=()):
    found = list(taken)
    seen = set(found)
    for _ in range(1000 * (count + 1)):
        if len(found) - len(taken) == count:
            return found[len(taken) :]
        value = make(rng)
        if value not in seen:
            seen.add(value)
            found.append(value)
    raise ValueError(f"no {count} different values of {make.__name__}")


def niah_question(kind, key, text):
    head = f"A special magic {kind} is hidden within the text below. Remember it: you will be asked for the {kind}.\n{text}"
    tail = f"\nWhat is the special magic {kind} for {key} that the text above mentions?"
    return head + tail, f" The special magic {kind} for {key} that the text above mentions is", len(head)


def niah(seed, kind, make_key, make_value, distractors):
    """item(n): n units of haystack (noise sentences, or needles of other keys) around one needle."""

    def item(n):
        rng = generator(*seed)
        key, value = make_key(rng), make_value(rng)
        place = rng.random()
        if distractors:
            # From generators of their own, so that the first ones stay when there are more.
            keys = distinct(generator(*seed, "keys"), make_key, n, (key,))
            values = distinct(generator(*seed, "values"), make_value, n, (value,))
            units = [needle(kind, k, v) for k, v in zip(keys, values, strict=True)]
        else:
            units = [NOISE[i % len(NOISE)] for i in range(n)]
        units.insert(round(place * len(units)), needle(kind, key, value))
        question, prefix, split = niah_question(kind, key, ("\n" if distractors else " ").join(units))
        return Item(question, prefix, (value,), split)

    return item


# --- variable tracking ---


def chain(rng, letters, hops):
    names = distinct(rng, lambda r: "".join(r.choices(string.ascii_uppercase, k=letters)), hops + 1)
    value = str(rng.randint(10000, 99999))
    lines = [f"VAR {names[0]} = {value}"] + [f"VAR {b} = VAR {a}" for a, b in zip(names, names[1:])]
    return names, value, lines


def chain_text(seed, letters, hops, noise):
    """The text with the chain's lines in order: places are drawn, sorted, and given to the lines one by one."""
    rng = generator(*seed)
    names, value, lines = chain(rng, letters, hops)
    places = sorted(rng.random() for _ in lines)
    units = [" ".join(NOISE)] * noise
    for place, line in reversed(list(zip(places, lines))):
        units.insert(round(place * noise), line)
    return "\n".join(units), names, value


def vt_parts(text, names, value):
    head = f"Follow the chains of variable assignments that are hidden in the text below.\n\n{text}"
    ask = f"\nQuestion: which variables have the value {value} in the text above?"
    answer = f" Answer: by the chains of assignments in the text above, {len(names)} variables have the value {value}; they are:"
    return head, ask, answer


def vt(seed):
    def item(n):
        example_text, example_names, example_value = chain_text((*seed, "example"), 3, HOPS, 2)
        head, ask, answer = vt_parts(example_text, example_names, example_value)
        example = head + ask + answer + " " + ", ".join(example_names) + "\n\n"
        text, names, value = chain_text(seed, 5, HOPS, n)
        head, ask, answer = vt_parts(text, names, value)
        return Item(example + head + ask, answer, tuple(names), len(example + head))

    return item


# --- common words, frequent words ---


def word_list(rng, common, uncommon, common_times, uncommon_times):
    words = common * common_times + uncommon * uncommon_times
    rng.shuffle(words)
    return " ".join(f"{i + 1}. {word}" for i, word in enumerate(words))


def cwe_parts(text):
    head = f"Below is a numbered list of words. Some of them appear more often than the others. Remember those.\n{text}"
    return (
        head,
        "\nQuestion: which ten words are the most common in the list above?",
        " Answer: the ten most common words are:",
    )


def cwe(seed, length):
    words = sorted({*NOUNS, *ADJECTIVES, *VERBS})
    # How often common and other words appear; and in the worked example, with its number of other words.
    often, seldom, shown_often, shown_seldom, shown = (6, 1, 3, 1, 10) if length < 4096 else (30, 3, 10, 3, 30)

    def item(n):
        rng = generator(*seed)
        pool = rng.sample(words, len(words))
        if 10 + shown + 10 + n > len(pool):
            raise TooFewWords(
                f"cwe of {length} tokens takes more than the {len(pool)} words there are: choose a shorter length"
            )
        example_common, example_rare, pool = pool[:10], pool[10 : 10 + shown], pool[10 + shown :]
        head, ask, answer = cwe_parts(word_list(rng, example_common, example_rare, shown_often, shown_seldom))
        example = head + ask + answer + " " + ", ".join(example_common) + "\n\n"
        common, rare = pool[:10], pool[10 : 10 + n]
        head, ask, answer = cwe_parts(word_list(rng, common, rare, often, seldom))
        return Item(example + head + ask, answer, tuple(common), len(example + head))

    return item


def zeta_counts(total, kinds):
    """floor(total k^-2 / zeta(2)) for k = 1 to kinds."""
    return [math.floor(total * k**-2.0 / (math.pi**2 / 6)) for k in range(1, kinds + 1)]


def fwe(seed, length):
    """Coded words whose counts fall as the square of their rank; the first rank is dots, the next three are asked for."""

    def item(n):
        rng = generator(*seed)
        coded = distinct(rng, lambda r: "".join(r.choices(string.ascii_lowercase, k=6)), max(4, length // 50))
        coded[0] = "..."
        words = [word for word, count in zip(coded, zeta_counts(n, len(coded))) for _ in range(count)]
        rng.shuffle(words)
        head = f"Read the coded text below and keep track of how often each coded word appears.\n{' '.join(words)}"
        ask = "\nQuestion: which are the three coded words that appear most often in the text above? The dots do not count."
        return Item(
            head + ask, " Answer: the three coded words that appear most often are:", tuple(coded[1:4]), len(head)
        )

    return item


def make_item(task, length, number, count_tokens):
    """Item `number` of a task that fills `length` tokens with its answer. `count_tokens(question, prefix)` is the length of
    the prompt as it is sent. ValueError where not even the smallest one fits."""
    seed = ("ruler", task, length, number)
    builders = {
        "niah_single_1": lambda: niah(seed, "number", word_key, number_value, distractors=False),
        "niah_multikey_2": lambda: niah(seed, "number", word_key, number_value, distractors=True),
        "niah_multikey_3": lambda: niah(seed, "uuid", uuid_value, uuid_value, distractors=True),
        "vt": lambda: vt(seed),
        "cwe": lambda: cwe(seed, length),
        "fwe": lambda: fwe(seed, length),
    }
    if task not in builders:
        raise ValueError(f"there is no task '{task}': must be one of {', '.join(TASKS)}")
    item, room = builders[task](), length - NEW_TOKENS[task]
    least = {"fwe": 64}.get(task, 1)  # fewer coded words than that tie

    def fits(n):
        try:
            made = item(n)
        except TooFewWords:  # the search looks beyond what fits
            return False
        return count_tokens(made.question, made.prefix) <= room

    n = largest(fits, least)
    if n < least:
        raise ValueError(f"{task} does not fit {length} tokens: choose a greater length")
    item(n + 1)  # TooFewWords where not the length but the words end it: nothing would fill that length
    return item(n)
