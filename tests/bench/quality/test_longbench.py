"""LongBench's files: prompts, the cut in the middle, scores."""

import json

import pytest

from quality import asking, longbench


def record(**fields):
    return {"input": "Who?", "context": "It was Ann.", "answers": ["Ann"], "all_classes": None, "_id": "1", **fields}


def words(text):
    return text.split(" ")


def test_every_english_set_has_a_prompt_that_holds_its_record():
    assert len(longbench.DATASETS) == 16
    for name, dataset in longbench.DATASETS.items():
        prompt, split = longbench.filled(dataset.prompt, record(context="<<context>>", input="<<{input}>>"))
        assert prompt[:split].endswith("<<context>>") and prompt.count("<<context>>") == 1, name
        asks = name not in ("gov_report", "multi_news", "passage_count", "lcc")
        assert ("<<{input}>>" in prompt[split:]) == asks, name


def test_a_context_is_not_searched_for_marks():
    prompt, split = longbench.filled("A {context} B {input}", record(context="{input} {context}", input="Q"))
    assert prompt == "A {input} {context} B Q" and prompt[split:] == " B Q"


def test_the_middle_is_cut():
    prompt, split = longbench.filled("Read: {context} Now: {input}", record(context=" ".join(map(str, range(100)))))
    cut, at = longbench.truncated(prompt, split, 20, words, lambda ids: " ".join(ids))
    # 10 words of the start, 10 of the end; text is put together as it comes.
    assert cut == "Read: 0 1 2 3 4 5 6 7 892 93 94 95 96 97 98 99 Now: Who?"
    assert cut[at:] == " Now: Who?"
    assert longbench.truncated(prompt, split, 1000, words, None) == (prompt, split)
    with pytest.raises(ValueError, match="--max-length"):
        longbench.truncated("a b c d " * 10, 4, 4, words, lambda ids: " ".join(ids))


def test_scores_of_a_first_line_and_of_a_whole_answer():
    classes = {"answers": ["Number"], "all_classes": ["Number", "Animal"]}
    assert longbench.score("trec", "\nNumber\nAnimal", record(**classes)) == 1
    assert longbench.score("hotpotqa", "Bob\nAnn", record()) == pytest.approx(2 / 3)
    assert longbench.score("triviaqa", "Bob\nAnn", record()) == 0


def test_loading(tmp_path):
    (tmp_path / "hotpotqa.jsonl").write_text(json.dumps(record()) + "\n" + json.dumps(record(_id="2")) + "\n")
    assert [(name, r["_id"]) for name, r in longbench.load(tmp_path)] == [("hotpotqa", "1"), ("hotpotqa", "2")]
    with pytest.raises(ValueError, match="has no qasper.jsonl"):
        longbench.load(tmp_path, ["qasper"])
    (tmp_path / "hotpotqa.jsonl").write_text('{"input": "x"}\n')
    with pytest.raises(ValueError, match="hotpotqa.jsonl:1 has no _id, answers, context"):
        longbench.load(tmp_path)
    (tmp_path / "dureader.jsonl").write_text("")
    with pytest.raises(ValueError, match="dureader"):
        longbench.load(tmp_path)


def test_prompt_lengths_are_the_benchmarks():
    assert [longbench.longest_prompt(n) for n in (131072, 32768, 8192, 4096, 2048)] == [31500, 31500, 7500, 3496, 1448]


def test_a_cut_text_does_not_begin_with_bos():
    class Client:
        def tokenize(self, text):
            return ["<s>", *text]

        def detokenize(self, ids):
            return "".join(ids)

    tokens = asking.Tokens(Client())
    cut, at = longbench.truncated("x" * 50 + " Who?", 50, 20, tokens.following, tokens.detokenize)
    assert cut == "x" * 15 + " Who?" and cut[at:] == " Who?"


def test_a_digest_is_of_record_and_prompt():
    digests = {longbench.digest(t, r) for t in ("A {context}", "B {context}") for r in (record(), record(context="x"))}
    assert len(digests) == 4
