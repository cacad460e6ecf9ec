"""Prompts in tokens, asked with the question in sight of the compression or not."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Prompt:
    ids: list
    split: int  # tokens before the question


def common_prefix(a, b):
    n = 0
    for x, y in zip(a, b):
        if x != y:
            break
        n += 1
    return n


class Tokens:
    """The server's tokenizer."""

    def __init__(self, client):
        self._client = client
        # What it puts before every text (BOS), where the model wants that.
        a, b = client.tokenize("a"), client.tokenize("b")
        self._lead = common_prefix(a, b)

    def text(self, text):
        return self._client.tokenize(text)

    def following(self, text):
        """Of a text that goes on from another."""
        return self._client.tokenize(text)[self._lead :] if text else []

    def chat(self, question):
        return self._client.tokenize([{"role": "user", "content": question}])

    def detokenize(self, ids):
        return self._client.detokenize(ids)

    def prompt(self, question, prefix="", split=0, chat=True):
        """A question and how its answer begins; `split` characters of it stand before what is asked."""
        render = self.chat if chat else self.text
        ids = render(question)
        head = common_prefix(render(question[:split]), ids) if split else 0
        return Prompt(ids + self.following(prefix), head)


def ask(client, prompt, kv, question, max_tokens, gold=None, answers=True, **options):
    """The greedy answer if `answers`, and the log-likelihood of `gold`, the one that is right, if it is given: at least one of
    them. `kv` is a function of the tokens that are compressed. `question` visible: the prompt is compressed as a whole.
    hidden: what stands before the question is compressed as a context, and the question comes after."""
    context_id, ids, how = "", prompt.ids, {"kv": kv(len(prompt.ids))}
    if question == "hidden":
        context = client.create_context(prompt.ids[: prompt.split], kv=kv(prompt.split))
        context_id, ids, how = context.context_id, prompt.ids[prompt.split :], {"context_id": context.context_id}
    try:
        found = {}
        if answers:
            answer = client.generate(ids, max_tokens=max_tokens, **how, **options)
            cache = answer.complete.cache
            found["answer"] = answer.text
        if gold is not None:
            scored = client.score(ids, [gold], **how)
            cache, score = scored.cache, scored.continuations[0]
            found |= {"gold_logprob": score.logprob, "gold_tokens": len(score.tokens)}
        return found | {"kv_bytes": cache.kv_bytes, "full_kv_bytes": cache.full_kv_bytes}
    finally:
        if context_id:
            client.delete_context(context_id)
