"""Score over real sockets: log-likelihoods beside those of transformers, and beside Generate's own."""

import grpc
import numpy as np
import pytest

from service import error_details, generate, stubs, wait_until
from tiny_model import IM_START

FULL = {"size": {"full": {}}}


def ids(count, seed=0):
    return {"ids": np.random.default_rng(seed).integers(0, 256, count).tolist()}


def score(server, timeout=120, **fields):
    return server.decode.Score(stubs().decode.ScoreRequest(**fields), timeout=timeout)


def logprobs(continuation):
    return [token.logprob for token in continuation.tokens]


@pytest.fixture(scope="module")
def server(start_server, model_path):
    return start_server(model=model_path, compute="fp32", calibration="off", retention=1.0, min_positions=0, threads=2)


@pytest.fixture(scope="module")
def tiny(start_server, tiny_model_path):
    return start_server(model=tiny_model_path, compute="fp32", calibration="off", min_positions=0, retention=0.25)


def test_log_likelihoods_are_those_of_transformers(server, reference_model, tokenize, corpus_texts):
    import torch

    worst = 0.0
    for text in corpus_texts[:3]:
        document = tokenize(text)[:400]
        prompt, rest = document[:300], document[300:]
        continuations = [rest, rest[:1], rest[40:60]]
        response = score(
            server,
            token_ids={"ids": prompt},
            kv=FULL,
            continuations=[{"token_ids": {"ids": c}} for c in continuations],
        )
        assert response.usage.prompt_tokens == 300
        assert response.usage.output_tokens == sum(map(len, continuations))
        for continuation, got in zip(continuations, response.continuations, strict=True):
            with torch.inference_mode():
                logits = reference_model(torch.tensor([prompt + continuation])).logits[0]
            reference = torch.log_softmax(logits.double(), dim=-1).numpy()[len(prompt) - 1 : -1]
            expected = reference[np.arange(len(continuation)), continuation]
            assert [token.token_id for token in got.tokens] == continuation
            worst = max(worst, np.abs(np.array(logprobs(got)) - expected).max())
            assert abs(got.logprob - sum(logprobs(got))) < 1e-3
            top = reference.argmax(-1).tolist()
            assert [token.greedy for token in got.tokens] == [a == b for a, b in zip(top, continuation)]
            assert got.greedy == (top == continuation)
    print(f"largest difference of a log-probability from transformers: {worst:.1e}")
    assert worst <= 2e-3


def test_what_generate_writes_is_greedy_and_as_probable(tiny):
    prompt = ids(200)
    _, tokens, written, _ = generate(
        tiny, token_ids=prompt, stopping={"max_tokens": 20, "ignore_eos": True}, output={"logprobs": 0}
    )
    other = [(token + 1) % 256 for token in tokens]
    response = score(
        tiny,
        token_ids=prompt,
        continuations=[{"token_ids": {"ids": tokens}}, {"token_ids": {"ids": other}}],
    )
    first, second = response.continuations
    assert first.greedy and not second.greedy
    assert np.abs(np.array(logprobs(first)) - [entry.logprob for entry in written]).max() < 1e-3
    assert second.logprob < first.logprob


def test_an_empty_prompt_is_bos(tiny):
    wanted = {"continuations": [{"text": "and then"}]}
    bos = score(tiny, token_ids={"ids": [IM_START]}, **wanted).continuations
    for empty in ({}, {"text": ""}, {"token_ids": {}}):
        response = score(tiny, **empty, **wanted)
        assert response.usage.prompt_tokens == 1
        assert response.continuations == bos


def test_over_a_context_only_what_is_new_is_prefilled(tiny):
    document, question = ids(300), ids(5, 1)
    context = tiny.decode.CreateContext(
        stubs().decode.CreateContextRequest(token_ids=document, kv=FULL), timeout=60
    ).context.context_id
    wanted = {"continuations": [{"text": "yes"}, {"text": "no"}]}
    over = score(tiny, context_id=context, token_ids=question, **wanted)
    assert (over.usage.context_tokens, over.usage.prompt_tokens) == (300, 5)
    whole = score(tiny, token_ids={"ids": document["ids"] + question["ids"]}, kv=FULL, **wanted)
    nothing = score(tiny, context_id=context, **wanted)
    assert (nothing.usage.context_tokens, nothing.usage.prompt_tokens) == (300, 0)
    alone = score(tiny, token_ids=document, kv=FULL, **wanted)
    for a, b in ((over, whole), (nothing, alone)):
        for left, right in zip(a.continuations, b.continuations, strict=True):
            assert np.abs(np.array(logprobs(left)) - logprobs(right)).max() < 1e-3


def test_many_continuations_share_one_prefill(tiny):
    before = tiny.metrics()["ripplekv_prompt_tokens_total"]
    response = score(tiny, token_ids=ids(300), continuations=[{"text": f"number {i}"} for i in range(256)])
    assert len(response.continuations) == 256
    assert tiny.metrics()["ripplekv_prompt_tokens_total"] - before == 300
    # Each as if it were alone.
    one = score(tiny, token_ids=ids(300), continuations=[{"text": "number 255"}])
    assert one.continuations[0] == response.continuations[255]


def test_refusals_name_their_field(tiny):
    for fields, field in (
        ({"token_ids": ids(3)}, "continuations"),
        ({"token_ids": ids(3), "continuations": [{"text": "a"}] * 257}, "continuations"),
        ({"token_ids": ids(3), "continuations": [{}]}, "continuations[0]"),
        ({"token_ids": ids(3), "continuations": [{"token_ids": {"ids": [999]}}]}, "continuations[0].token_ids.ids[0]"),
        ({"token_ids": ids(3), "continuations": [{"text": "a"}], "kv": {"growth_cap": 16}}, "kv.growth_cap"),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            score(tiny, **fields)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert error_details(caught.value)["BadRequest"].field_violations[0].field == field
    # Prompt and continuation together beyond the context.
    with pytest.raises(grpc.RpcError) as caught:
        score(tiny, token_ids=ids(1000), continuations=[{"token_ids": ids(100)}])
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_caller_who_leaves_frees_everything(server):
    with pytest.raises(grpc.RpcError) as caught:
        score(server, timeout=0.3, token_ids=ids(4000), continuations=[{"token_ids": ids(900)}] * 70)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(
        lambda: server.metrics()["ripplekv_requests_running"] == 0
        and server.metrics()["ripplekv_kv_used_bytes"] == 0,
        30,
        "slot and pages to be free",
    )
