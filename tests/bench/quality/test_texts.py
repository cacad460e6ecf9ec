"""Which documents are measured."""

import pytest

from quality import texts
from quality.texts import Document


def test_articles_of_a_wikitext_file(tmp_path):
    (tmp_path / "wiki.raw").write_text(" \n = First = \n a b\n = = Part = = \n c\n = Second Title = \n d\n")
    found = texts.from_paths([tmp_path])
    assert [(d.name, d.kind) for d in found] == [("wiki.raw: First", "prose"), ("wiki.raw: Second Title", "prose")]
    assert found[0].text.split() == ["a", "b", "=", "=", "Part", "=", "=", "c"] and found[1].text.strip() == "d"


def test_files_of_a_folder_without_the_calibrations_own(tmp_path):
    (tmp_path / "a").mkdir()
    for name, text in (
        ("one.txt", "prose"),
        ("a/two.py", "code"),
        ("three.md", "seen"),
        (".hidden", "x"),
        ("same.txt", "prose"),
    ):
        (tmp_path / name).write_text(text)
    found = texts.documents([tmp_path], corpus=["seen"])
    assert sorted((d.text, d.kind) for d in found) == [("code", "code"), ("prose", "prose")]
    with pytest.raises(ValueError, match="nothing.txt: there is no such file"):
        texts.documents([tmp_path / "nothing.txt"])


def test_a_documents_split_follows_from_its_text_alone():
    found = [Document(f"n{i}", "prose", f"text {i}") for i in range(200)]
    assert {Document("other", "code", d.text).split == d.split for d in found} == {True}
    assert 70 < sum(d.split == "tuning" for d in found) < 130


def test_documents_are_chosen_kind_by_kind():
    found = [Document(f"{kind} {i}", kind, f"{kind} {i}" * i) for kind in ("prose", "code") for i in range(1, 40)]

    def long_enough(document):
        return len(document.text) > 60 and "fits"

    picked = texts.chosen(found, "tuning", 8, long_enough)
    assert [d.kind for d, _ in picked] == ["prose", "code"] * 4 and {fits for _, fits in picked} == {"fits"}
    assert all(d.split == "tuning" and len(d.text) > 60 for d, _ in picked)
    assert picked == texts.chosen(found[::-1], "tuning", 8, long_enough)
    # Where one kind ends, the other goes on; where both end, that is said.
    few = [d for d in found if d.kind == "code" or d.digest == picked[0][0].digest]
    assert [d.kind for d, _ in texts.chosen(few, "tuning", 4, long_enough)] == ["prose", "code", "code", "code"]
    with pytest.raises(ValueError, match="1 documents of the tuning split are long enough, 4 are asked for.*--count 1"):
        texts.chosen([picked[0][0]], "tuning", 4, long_enough)


def test_every_python_has_enough_of_them():
    found = texts.documents([])
    # About four characters a token: 4096 tokens and 64 to follow, or more.
    long = [d for d in found if len(d.text) > 5 * (4096 + 64)]
    for split in ("tuning", "held-out"):
        assert sum(d.split == split and d.kind == "prose" for d in long) >= 5
        assert sum(d.split == split for d in long) >= 44
