"""Facts hidden in prose."""

import re

import pytest

from quality import retrieval
from quality.texts import Document

PROSE = [
    Document("d", "prose", " ".join(f"This is sentence {i} of a quiet text.\nIt has a neighbour." for i in range(300)))
]


def count_words(question, prefix):
    return len((question + prefix).split())


@pytest.mark.parametrize("kind", retrieval.KINDS)
def test_items(kind):
    answers, places = set(), []
    for number in range(30):
        item = retrieval.make_item(kind, 400, number, PROSE, count_words)
        assert item == retrieval.make_item(kind, 400, number, PROSE, count_words)
        assert 350 < count_words(item.question, item.prefix) <= 400 - retrieval.NEW_TOKENS
        (answer,) = item.references
        # Told once before the split, and not after it.
        assert len(re.findall(rf"\b{answer}\b", item.question[: item.split])) == 1
        assert answer not in item.question[item.split :] + item.prefix
        answers.add(answer)
        places.append(item.question.index(answer) / item.split)
    assert len(answers) > 20 and min(places) < 0.3 and max(places) > 0.7


def test_the_right_one_of_several_is_asked_for():
    item = retrieval.make_item("multikey", 400, 5, PROSE, count_words)
    told = dict(re.findall(r"The pass code of the ([a-z]+ [a-z]+) is (\d{5})\.", item.question[: item.split]))
    asked = re.search(r"What is the pass code of the ([a-z]+ [a-z]+)\?", item.question[item.split :]).group(1)
    assert len(told) == retrieval.MULTIKEY and (told[asked],) == item.references


def test_what_cannot_be_made_is_refused():
    with pytest.raises(ValueError, match="do not fit 30 tokens"):
        retrieval.make_item("qa", 30, 0, PROSE, count_words)
    with pytest.raises(ValueError, match="no kind 'song'"):
        retrieval.make_item("song", 400, 0, PROSE, count_words)
