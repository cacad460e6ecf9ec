"""Prompts in tokens, with a tokenizer of characters that puts 1 before every text."""

import types

from quality.asking import Tokens, ask


class Characters:
    """A client as far as it is needed here; tells what it was asked."""

    def __init__(self):
        self.calls = []

    def tokenize(self, prompt):
        text = prompt if isinstance(prompt, str) else f"<{prompt[0]['content']}>ANSWER:"
        return [1, *map(ord, text)]

    def create_context(self, ids, kv):
        self.calls.append(("context", ids, kv))
        return types.SimpleNamespace(context_id="c7")

    def delete_context(self, context_id):
        self.calls.append(("delete", context_id))

    def generate(self, ids, max_tokens, **how):
        self.calls.append(("generate", ids, max_tokens, how))
        cache = types.SimpleNamespace(kv_bytes=3, full_kv_bytes=9)
        return types.SimpleNamespace(text="yes", complete=types.SimpleNamespace(cache=cache))

    def score(self, ids, continuations, **how):
        self.calls.append(("score", ids, continuations, how))
        cache = types.SimpleNamespace(kv_bytes=3, full_kv_bytes=9)
        return types.SimpleNamespace(continuations=[types.SimpleNamespace(logprob=-2.0, tokens=[1, 2])], cache=cache)


def kv_of(tokens):
    return {"size": {"total_positions": tokens}}


def text_of(ids):
    return "".join(map(chr, ids))


def test_prompts():
    tokens = Tokens(Characters())
    assert text_of(tokens.following("ab")) == "ab" and tokens.following("") == []
    prompt = tokens.prompt("Document. Why?", prefix=" Because", split=9)
    assert text_of(prompt.ids) == "\x01<Document. Why?>ANSWER: Because"
    assert text_of(prompt.ids[prompt.split :]) == " Why?>ANSWER: Because"
    prompt = tokens.prompt("Document. Why?", split=9, chat=False)
    assert text_of(prompt.ids[: prompt.split]) == "\x01Document."


def test_both_ways_of_asking_send_the_same_tokens():
    client = Characters()
    prompt = Tokens(client).prompt("Document. Why?", split=9)
    found = ask(client, prompt, kv_of, "visible", 5, " gold", min_tokens=1)
    assert found == {"answer": "yes", "kv_bytes": 3, "full_kv_bytes": 9, "gold_logprob": -2.0, "gold_tokens": 2}
    assert client.calls == [
        ("generate", prompt.ids, 5, {"kv": kv_of(len(prompt.ids)), "min_tokens": 1}), ("score", prompt.ids, [" gold"], {"kv": kv_of(len(prompt.ids))})
    ]  # fmt: skip
    client.calls.clear()
    ask(client, prompt, kv_of, "hidden", 5, " gold")
    head, rest = prompt.ids[: prompt.split], prompt.ids[prompt.split :]
    assert client.calls == [
        ("context", head, kv_of(len(head))), ("generate", rest, 5, {"context_id": "c7"}), ("score", rest, [" gold"], {"context_id": "c7"}),
        ("delete", "c7"),
    ]  # fmt: skip


def test_what_is_not_asked_for_is_not_measured():
    client = Characters()
    prompt = Tokens(client).prompt("Document. Why?", split=9)
    sizes = {"kv_bytes": 3, "full_kv_bytes": 9}
    assert ask(client, prompt, kv_of, "visible", 5) == {"answer": "yes", **sizes}
    assert ask(client, prompt, kv_of, "visible", 5, " gold", answers=False) == {
        "gold_logprob": -2.0,
        "gold_tokens": 2,
        **sizes,
    }
    assert [call[0] for call in client.calls] == ["generate", "score"]
