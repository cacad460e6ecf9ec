"""LongBench's scorers (github.com/THUDM/LongBench, LongBench/metrics.py and eval.py), written from their definition; scores
are 0 to 1."""

import collections
import difflib
import re
import string


def words_of(text):
    """Lower case, without punctuation and articles."""
    text = "".join(ch for ch in text.lower() if ch not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def f1(answer, truth, classes=None):
    a, b = words_of(answer), words_of(truth)
    common = sum((collections.Counter(a) & collections.Counter(b)).values())
    if common == 0:
        return 0.0
    precision, recall = common / len(a), common / len(b)
    return 2 * precision * recall / (precision + recall)


def common_words(x, y):
    """The words of one longest common subsequence, the one that the package `rouge` finds."""
    table = [[0] * (len(y) + 1) for _ in range(len(x) + 1)]
    for i, a in enumerate(x):
        for j, b in enumerate(y):
            table[i + 1][j + 1] = table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
    i, j, found = len(x), len(y), set()
    while i and j:
        if x[i - 1] == y[j - 1]:
            found.add(x[i - 1])
            i, j = i - 1, j - 1
        elif table[i - 1][j] > table[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return found


def rouge_l(answer, truth, classes=None):
    """The package `rouge`'s rouge-l f: sentences end at dots, words count once, the union of the longest common
    subsequences of all pairs of sentences."""
    a = [s.split() for s in answer.split(".") if s]
    b = [s.split() for s in truth.split(".") if s]
    words_a, words_b = {w for s in a for w in s}, {w for s in b for w in s}
    if not words_a or not words_b:
        return 0.0
    union = set()
    for y in b:
        for x in a:
            union |= common_words(y, x)
    precision, recall = len(union) / len(words_a), len(union) / len(words_b)
    return 2 * precision * recall / (precision + recall + 1e-8)


def classification(answer, truth, classes):
    """One over the number of classes named, where the truth is among them. Of those, parts of the truth's own name are not
    counted, but the one after such a part escapes that test: the original removes from the list that it walks over, and
    scores are to be the same."""
    named = [c for c in classes if c in answer]
    i = 0
    while i < len(named):
        if named[i] in truth and named[i] != truth:
            named.remove(named[i])
        i += 1
    return 1.0 / len(named) if truth in named else 0.0


def share_of_numbers(answer, number):
    numbers = re.findall(r"\d+", answer)
    return sum(n == number for n in numbers) / len(numbers) if numbers else 0.0


def retrieval(answer, truth, classes=None):
    return share_of_numbers(answer, re.findall(r"Paragraph (\d+)", truth)[0])


def count(answer, truth, classes=None):
    return share_of_numbers(answer, str(truth))


def code_similarity(answer, truth, classes=None):
    """The first line that is no comment and no fence, beside the truth; fuzzywuzzy's ratio over difflib."""
    lines = [line for line in answer.lstrip("\n").split("\n") if not any(mark in line for mark in ("`", "#", "//"))]
    line = lines[0] if lines else ""
    if not line or not truth:
        return 0.0
    return int(round(100 * difflib.SequenceMatcher(None, line, truth).ratio())) / 100


def best(scorer, answer, truths, classes=None):
    """The best over the references."""
    return max((scorer(answer, truth, classes) for truth in truths), default=0.0)
