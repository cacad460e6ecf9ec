"""What the lm-eval adapter asks of a server, beside transformers on the same weights; needs no lm-eval."""

import numpy as np
import pytest

from service import stubs

FULL = {"size": {"full": {}}}
PAIRS = [
    ("The capital of France is", " Paris"),
    ("The capital of France is", " a city"),
    ("Two and two are ", "four"),  # the space goes to the answer
    ("", "Once upon a time"),
    ("Water boils at one hundred", " degrees"),
]


@pytest.fixture(scope="module")
def make_harness(start_server, model_path):
    stubs()
    import ripplekv
    from ripplekv.harness import Harness

    server = start_server(
        model=model_path, compute="fp32", calibration="off", min_positions=0, retention=0.3, threads=2
    )
    with ripplekv.Client(server.address, timeout=120) as client:
        yield lambda **more: Harness(client, **{"kv": FULL, **more})


@pytest.fixture(scope="module")
def reference(reference_model):
    """[token ids] -> log-probabilities [tokens, vocabulary] of what follows each."""
    import torch

    def logprobs(ids):
        with torch.inference_mode():
            return torch.log_softmax(reference_model(torch.tensor([ids])).logits[0].double(), dim=-1).numpy()

    return logprobs


def expected(reference, context, continuation):
    table = reference(context + continuation)[len(context) - 1 : -1]
    chosen = table[np.arange(len(continuation)), continuation]
    return chosen.sum(), (table.argmax(-1) == continuation).all()


def test_loglikelihoods(make_harness, reference, tokenize, reference_model):
    harness = make_harness()
    told = []
    answers = harness.loglikelihood(PAIRS, told.append)
    assert sum(told) == len(PAIRS)
    bos = reference_model.config.bos_token_id
    for (context, continuation), (logprob, greedy) in zip(PAIRS, answers, strict=True):
        head = tokenize(context.rstrip()) if context else [bos]
        whole = tokenize(context + continuation)
        tail = whole[len(head) :] if context else whole
        value, best = expected(reference, head, tail)
        assert abs(logprob - value) < 1e-3 and greedy == best, (context, continuation)
    assert answers[0][1] and not answers[1][1]


def test_whole_texts_in_windows(make_harness, reference, tokenize, reference_model):
    text = "The lighthouse stood on the rock, and nobody had lived there for years. " * 3
    ids, bos = tokenize(text), reference_model.config.bos_token_id
    assert len(ids) > 40
    harness = make_harness(max_length=21)
    value = expected(reference, [bos], ids[:20])[0]
    for start in range(20, len(ids), 20):
        value += expected(reference, ids[start - 1 : start], ids[start : start + 20])[0]
    assert abs(harness.loglikelihood_rolling([text, ""])[0] - value) < 2e-3
    assert harness.loglikelihood_rolling([""]) == [0.0]
    assert abs(make_harness().loglikelihood_rolling([text])[0] - expected(reference, [bos], ids)[0]) < 2e-3


def test_generating_until_a_stop(make_harness, reference, tokenize, reference_tokenizer):
    context = "A list of colours:\n1. Red\n2."
    ids, written = tokenize(context), []
    for _ in range(12):
        written.append(int(reference(ids + written)[-1].argmax()))
    text = reference_tokenizer.decode(written)
    assert "\n" in text
    harness = make_harness()
    whole, line, short = harness.generate_until([
        (context, {"max_gen_toks": 12, "do_sample": False}),
        (context, {"until": ["\n"], "max_gen_toks": 12}),
        (context, {"until": "\n", "max_new_tokens": 1, "temperature": 0.0}),
    ])  # fmt: skip
    assert whole == text and line == text.split("\n")[0] and short == reference_tokenizer.decode(written[:1])
    # A long context loses its beginning.
    cut = make_harness(max_length=len(ids) + 2).generate_until(
        [("Nothing of this. " * 9 + context, {"max_gen_toks": 2})]
    )
    assert cut == [reference_tokenizer.decode(written[:2])]


def test_continuations_of_one_context_share_a_call(make_harness):
    harness = make_harness()
    calls = []
    score = harness.client.score

    def counted(prompt, continuations, **more):
        calls.append(len(continuations))
        return score(prompt, continuations, **more)

    harness.client.score = counted
    try:
        harness.loglikelihood(PAIRS)
    finally:
        del harness.client.score
    assert sorted(calls) == [1, 1, 1, 2]


def test_a_compressed_cache_answers_otherwise(make_harness):
    text = "The lighthouse stood on the rock, and nobody had lived there for years. " * 20
    pair = [(text, " The keeper's name was")]
    full = make_harness().loglikelihood(pair)
    assert make_harness(kv={"size": {"retention": 0.2}}).loglikelihood([pair[0]]) != full
    assert make_harness(kv={"size": {"retention": 1.0}}).loglikelihood([pair[0]]) == full


def test_wrong_settings(make_harness):
    harness = make_harness()
    for call, error in (
        (lambda: make_harness(max_length=10**6), "max_length is 1000000: must be 2 to"),
        (lambda: make_harness(concurrency=0), "concurrency is 0"),
        (lambda: harness.loglikelihood([("a", "")]), "a continuation has 0 tokens"),
        (lambda: harness.generate_until([("a", {"beams": 2})]), "not known: beams"),
        (lambda: harness.generate_until([("", {})]), "a context is empty"),
        (lambda: make_harness(max_length=8).generate_until([("a", {"max_gen_toks": 8})]), "less than max_length, 8"),
    ):
        with pytest.raises(ValueError, match=error):
            call()
