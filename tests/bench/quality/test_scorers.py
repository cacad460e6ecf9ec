"""Scores worked out by hand."""

import pytest

from quality import scorers


def test_f1():
    assert scorers.f1("The cat sat.", "a cat") == pytest.approx(2 / 3)  # 1 of 2 words, 1 of 1
    assert scorers.f1("cat cat dog", "cat dog dog") == pytest.approx(2 / 3)  # counted twice at most where both have two
    assert scorers.f1("An the a", "cat") == 0 and scorers.f1("", "") == 0
    assert scorers.f1("U.S.A", "usa") == 1


def test_rouge_l():
    # LCS "b c d" of 4 and 3 words: 2 * 3/4 * 1 / (7/4).
    assert scorers.rouge_l("a b c d", "b c d") == pytest.approx(6 / 7)
    # Words count once: {a, b} and {a, b, c}, union of the LCS {a, b}.
    assert scorers.rouge_l("a b a b", "a b c") == pytest.approx(2 * 1 * (2 / 3) / (5 / 3))
    # Sentence by sentence: "x y" of the first reference and "z" of the second, both in the answer's own sentences.
    assert scorers.rouge_l("x y. z", "x y. w z") == pytest.approx(2 * 1 * (3 / 4) / (7 / 4))
    # Order matters within a sentence.
    assert scorers.rouge_l("b a", "a b") == pytest.approx(0.5)
    assert scorers.rouge_l("", "a") == 0 and scorers.rouge_l("...", "a") == 0


def test_rouge_l_chooses_the_subsequence_that_the_package_chooses():
    # Both "b" and "a" are longest; which of them is no matter for one pair, but for the union over sentences.
    assert scorers.common_words(["a", "b"], ["b", "a"]) == {"b"}
    assert scorers.common_words(["b", "a"], ["a", "b"]) == {"a"}
    assert scorers.rouge_l("a b. b", "b a") == pytest.approx(1.0)


def test_classification():
    classes = ["Food", "Food other", "Number", "Animal"]
    assert scorers.classification("Number", "Number", classes) == 1
    assert scorers.classification("Number or Animal", "Number", classes) == 0.5
    # "Food" is part of the truth's name and is not counted.
    assert scorers.classification("Food other", "Food other", classes) == 1
    # The one after a removed part escapes: "Food o" stays, so there are two.
    assert scorers.classification("Food other", "Food other", ["Food", "Food o", "Food other"]) == 0.5
    assert scorers.classification("nothing", "Number", classes) == 0


def test_numbers():
    assert scorers.retrieval("Paragraph 7, not 8", "Paragraph 7") == 0.5
    assert scorers.retrieval("none", "Paragraph 7") == 0
    assert scorers.retrieval("17", "Paragraph 7") == 0
    assert scorers.count("There are 5 of 5, or 6", "5") == pytest.approx(2 / 3)


def test_code_similarity():
    # The first line that is neither comment nor fence. difflib: 2 * 4 / (5 + 4) = 0.888..., rounded to hundredths.
    assert scorers.code_similarity("\n```python\n# x\nx = 1\ny = 2", "x = ") == 0.89
    assert scorers.code_similarity("// only", "x = 1") == 0
    assert scorers.code_similarity("return a", "return a") == 1


def test_the_best_reference_counts():
    assert scorers.best(scorers.f1, "blue", ["red", "blue"]) == 1
    assert scorers.best(scorers.f1, "blue", []) == 0
