"""What a result is kept under: all that it depends on."""

import pathlib
import types

import pytest

from quality import answers_tasks, cli, longbench, methods, served, texts
from quality.asking import Tokens

PROSE = "Every {0} has a quiet neighbour of its own. The others went to the sea on {0} days. "


class Words:
    """A client that answers everything rightly; as many tokens as there are words."""

    def __init__(self):
        self.vocabulary = {}
        self.answer = ""

    def tokenize(self, prompt):
        text = prompt if isinstance(prompt, str) else prompt[0]["content"]
        return [self.vocabulary.setdefault(word, len(self.vocabulary)) for word in text.split()]


def options(documents, **more):
    return types.SimpleNamespace(
        documents=documents, corpus=(), split="held-out", methods=methods.named(["full", "snapkv"]), fractions=[0.2],
        candidates=3, items=2, length=200, question=["visible"], measure=["answers", "likelihood"], sizing=methods.Sizing(2, 100, 100), **more,
    )  # fmt: skip


def write(folder, words):
    folder.mkdir()
    for word in words:
        (folder / f"{word}.txt").write_text(PROSE.format(word) * 40)
    return [folder]


def test_items_of_other_documents_have_other_keys(tmp_path):
    held = [w for w in map(str, range(40)) if texts.Document("", "", PROSE.format(w) * 40).split == "held-out"]
    client = Words()

    def keys(documents):
        class Right(dict):
            def __getitem__(self, key):
                return {"score": 1}

        return {key for key, _ in answers_tasks.retrieval_jobs(options(documents), client, Tokens(client), Right())}

    a, b = write(tmp_path / "a", held[:3]), write(tmp_path / "b", held[3:6])
    assert keys(a) == keys(a) and len(keys(a)) == 3 * 2 * 2
    assert not keys(a) & keys(b)


def test_a_method_that_means_something_else_is_measured_again():
    key = ("vt", 1024, 3, "visible", "ripple-8", 0.2)
    before = cli.kept_under("ruler", key)
    assert before[:-1] == key and '"gamma": 16.0' in before[-1]
    assert before != cli.kept_under("ruler", (*key[:4], "ripple-3", 0.2))
    assert "snapkv" in cli.kept_under("damage", (1024, 0.1, "d", 3))[-1]


def test_files_are_known_by_what_is_in_them(tmp_path):
    (tmp_path / "a").write_text("x")
    first = cli.setting(tmp_path / "a")
    (tmp_path / "a").write_text("y")
    assert first.startswith("a, sha256 2d711642b726b044") and cli.setting(tmp_path / "a") != first
    assert cli.setting(64) == "64"


@pytest.mark.parametrize("address", ["", "127.0.0.1:1"])
def test_settings_have_what_the_server_does_by_itself(tmp_path, address):
    from service import stubs

    d, p = stubs().decode, stubs().profile
    (tmp_path / "ripplekv-server").write_text("program")
    how = types.SimpleNamespace(address=address, build=tmp_path)

    def settings(r=1.5, window=32, growth_cap=0):
        model = d.GetModelResponse(
            plan=p.Plan(allocator={"ripple": {"r": r}}), selector={"snapkv": {"window": window}}, limits={"growth_cap": growth_cap}
        )  # fmt: skip
        return served.settings(how, model, None)

    assert settings() == settings()
    assert all(settings(**other) != settings() for other in ({"r": 2}, {"window": 16}, {"growth_cap": 64}))
    before = settings()
    (tmp_path / "ripplekv-server").write_text("another")
    assert (settings() == before) == bool(address)


def test_records_are_known_by_what_is_in_them():
    data = pathlib.Path(__file__).parent / "longbench"
    client = Words()

    def keys(template):
        how = options([], data=data, datasets=["hotpotqa"], most=None, max_length=10**6, prompts=template)
        return {key for key, _ in answers_tasks.longbench_jobs(how, client, Tokens(client))}

    first = keys(None)
    ids = {record["_id"] for _, record in longbench.load(data, ["hotpotqa"])}
    assert {key[2].split()[0] for key in first} == ids and len(first) == 2 * len(ids)
    template = types.SimpleNamespace(read_text=lambda: '{"hotpotqa": "{context} {input}"}')
    assert not keys(template) & first
