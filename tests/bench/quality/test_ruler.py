"""The synthetic tasks by their definition."""

import collections
import dataclasses
import re

import pytest

from quality import ruler
from quality.words import ADJECTIVES, NOUNS, VERBS


def count_words(question, prefix):
    return len(re.findall(r"\w+|[^\w\s]", question + prefix))


@pytest.mark.parametrize("task", ruler.TASKS)
@pytest.mark.parametrize("length", [1024, 4096])
def test_items_fill_their_length_and_hold_their_answer(task, length):
    item = ruler.make_item(task, length, 3, count_words)
    room = length - ruler.NEW_TOKENS[task]
    tokens = count_words(item.question, item.prefix)
    assert room * 0.9 - 40 < tokens <= room
    assert all(reference in item.question for reference in item.references)
    # What is asked stands at the end, after the split; the answer does not.
    assert 0 < item.split < len(item.question)
    assert not any(reference in item.question[item.split :] for reference in item.references if reference.isdigit())
    assert ruler.make_item(task, length, 3, count_words) == item
    assert ruler.make_item(task, length, 4, count_words) != item
    assert ruler.match_all(item.gold(), item.references) == 1


def test_needles():
    item = ruler.make_item("niah_single_1", 1024, 0, count_words)
    needles = re.findall(r"One of the special magic numbers for (\S+) is: (\d{7})\.", item.question)
    assert [value for _, value in needles] == list(item.references)
    assert needles[0][0] in item.question[item.split :] and needles[0][0] in item.prefix
    others = item.question[: item.split].replace("One of the special magic numbers", "")
    assert others.count("The grass is green.") > 20

    item = ruler.make_item("niah_multikey_2", 1024, 0, count_words)
    needles = re.findall(r"One of the special magic numbers for (\S+) is: (\d{7})\.", item.question)
    assert len(needles) > 20 and len(set(needles)) == len(needles) == len({k for k, _ in needles})
    asked = re.search(r"number for (\S+) that", item.question[item.split :]).group(1)
    assert (dict(needles)[asked],) == item.references

    item = ruler.make_item("niah_multikey_3", 2048, 0, count_words)
    pair = r"([0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})"
    needles = re.findall(f"One of the special magic uuids for {pair} is: {pair}\\.", item.question)
    assert len(needles) > 20 and needles.count((re.search(pair, item.prefix).group(1), item.references[0])) == 1


def test_needles_stand_everywhere():
    places = []
    for number in range(40):
        item = ruler.make_item("niah_single_1", 1024, number, count_words)
        places.append(item.question.index("One of the special") / item.split)
    assert min(places) < 0.2 and max(places) > 0.8 and 0.35 < sum(places) / 40 < 0.65


def test_variable_tracking():
    item = ruler.make_item("vt", 1024, 1, count_words)
    text = item.question[item.question.rindex("Follow the chains") :]
    value = re.search(r"have the value (\d{5})", item.question[item.split :]).group(1)
    assigned = dict(re.findall(r"VAR (\w+) = (VAR \w+|\d+)", text))
    assert len(assigned) == 5 and all(re.fullmatch("[A-Z]{5}", name) for name in assigned)

    def resolve(name):
        target = assigned[name]
        return target if target.isdigit() else resolve(target.removeprefix("VAR "))

    assert {resolve(name) for name in assigned} == {value}
    order = [name for name, _ in re.findall(r"VAR (\w+) = (VAR \w+|\d+)", text)]
    assert tuple(order) == item.references
    # One worked example before, of three letters.
    example = item.question[: item.question.rindex("Follow the chains")]
    assert len(re.findall(r"VAR [A-Z]{3} = ", example)) == 5 and example.rstrip().endswith(
        tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    )


@pytest.mark.parametrize("length, often, seldom, shown", [(1024, 6, 1, 10 * 3 + 10), (4096, 30, 3, 10 * 10 + 30 * 3)])
def test_common_words(length, often, seldom, shown):
    item = ruler.make_item("cwe", length, 2, count_words)
    listed = item.question[item.question.rindex("Below is") : item.split]
    entries = re.findall(r"(\d+)\. (\w+)", listed)
    assert [int(number) for number, _ in entries] == list(range(1, len(entries) + 1))
    counts = collections.Counter(word for _, word in entries)
    assert {word for word, n in counts.items() if n == often} == set(item.references) and len(item.references) == 10
    assert {n for word, n in counts.items() if word not in item.references} == {seldom}
    example = re.findall(r"\d+\. (\w+)", item.question[: item.question.rindex("Below is")])
    assert len(example) == shown and not set(example) & set(counts)


def test_frequent_words():
    item = ruler.make_item("fwe", 2048, 2, count_words)
    words = item.question[item.question.index("\n") + 1 : item.split].split()
    counts = collections.Counter(words)
    ordered = [word for word, _ in counts.most_common(4)]
    assert ordered[0] == "..." and ordered[1:] == list(item.references)
    total = next(n for n in range(1, 5000) if ruler.zeta_counts(n, 1)[0] == counts["..."] + 1) - 1
    assert [counts[w] for w in ordered] == pytest.approx([0.6079 * total / k**2 for k in (1, 2, 3, 4)], abs=1.1)


def test_zeta_counts():
    assert ruler.zeta_counts(1000, 4) == [607, 151, 67, 37]


def test_scores():
    assert ruler.match_all("It is ABC and 12", ("abc", "13")) == 0.5
    assert ruler.match_any("It is ABC", ("abc", "13")) == 1 and ruler.match_any("", ("a",)) == 0


def test_largest():
    for n in (0, 1, 2, 3, 7, 8, 100):
        assert ruler.largest(lambda k: k <= n) == n
        assert ruler.largest(lambda k: k <= n, first=5) == n


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="vt does not fit 100 tokens"):
        ruler.make_item("vt", 100, 0, count_words)
    with pytest.raises(ValueError, match="there is no task 'niah'"):
        ruler.make_item("niah", 1024, 0, count_words)


def test_words_are_all_different():
    words = NOUNS + ADJECTIVES + VERBS
    assert len(words) == len(set(words)) and all(re.fullmatch("[a-z]+", word) for word in words)


def test_a_search_beyond_the_words_there_are():
    # More than 512 other words, so that the search asks for 1,024; there are fewer.
    item = ruler.make_item("cwe", 2200, 0, count_words)
    assert 2050 < count_words(item.question, item.prefix) <= 2200 - ruler.NEW_TOKENS["cwe"]
    with pytest.raises(ValueError, match="cwe of 60000 tokens takes more than the .* choose a shorter length"):
        ruler.make_item("cwe", 60000, 0, count_words)


def test_an_items_digest_is_of_all_of_it():
    item = ruler.make_item("vt", 1024, 3, count_words)
    others = [dataclasses.replace(item, question="x"), dataclasses.replace(item, references=("y",))]
    assert len({other.digest for other in [item, *others]}) == 3
