"""Score over real sockets: log-likelihoods beside those of transformers, and beside Generate's own."""

import grpc
import numpy as np
import pytest

from service import error_details, generate, stubs, wait_until
from test_snapkv_oracle import PROMPT, STEPS, Dump, Reference
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


def test_divergence_from_the_full_cache_is_that_of_transformers(
    server, model_path, reference_model, tokenize, corpus_texts, tmp_path
):
    """The same kept positions in transformers: KL and agreement of every teacher-forced token, and the mean."""
    import torch

    tokens = 20
    worst_kl = worst_logprob = 0.0
    agreed = 0
    for text in (corpus_texts[0], corpus_texts[4]):
        document = tokenize(text)[: PROMPT + tokens]
        assert len(document) == PROMPT + tokens
        response = score(
            server,
            token_ids={"ids": document[:PROMPT]},
            kv={"size": {"retention": 0.1}},
            continuations=[{"token_ids": {"ids": document[PROMPT:]}}],
            reference=True,
        )
        got = response.continuations[0]

        kept = Dump(tmp_path, model_path, document[: PROMPT + STEPS], 0.1).kept
        assert [layer.positions_kept for layer in response.cache.layers] == [rows.shape[1] for rows in kept]
        with torch.inference_mode():
            full = reference_model(torch.tensor([document])).logits[0, PROMPT - 1 : -1].double().log_softmax(-1)
        reference = Reference(reference_model, document[:PROMPT])
        reference.start_decoding(kept)
        rows = [reference.decode(document[PROMPT - 1], PROMPT - 1, append=False)]
        rows += [reference.decode(document[i], i, append=True) for i in range(PROMPT, PROMPT + tokens - 1)]
        compressed = torch.stack(rows).double().log_softmax(-1)
        kl = (full.exp() * (full - compressed)).sum(-1).numpy()

        assert kl.min() > 1e-6, "compression must be visible in what this test compares"
        assert [token.kl for token in got.tokens] == pytest.approx(kl, rel=5e-3, abs=1e-5)
        assert got.mean_kl == pytest.approx(kl.mean(), rel=1e-3)
        worst_kl = max(worst_kl, np.abs([token.kl for token in got.tokens] - kl).max())
        forced = torch.tensor(document[PROMPT:])[:, None]
        for ours, theirs in (
            ([token.reference_logprob for token in got.tokens], full),
            (logprobs(got)[1:], compressed),  # the first one's comes from the exact prefill
        ):
            expected = theirs.gather(1, forced)[:, 0].numpy()[-len(ours) :]
            worst_logprob = max(worst_logprob, np.abs(ours - expected).max())
        same = full.argmax(-1) == compressed.argmax(-1)
        sure = [row.topk(2).values.diff().abs().item() > 1e-2 for row in (*full, *compressed)]
        for i, token in enumerate(got.tokens):
            if sure[i] and sure[tokens + i]:
                assert token.top1_agrees == same[i].item()
        agreed += same.sum().item()
    print(f"largest difference from transformers: {worst_kl:.1e} of a KL, {worst_logprob:.1e} of a log-probability")
    assert worst_logprob <= 2e-3
    assert 0 < agreed < 2 * tokens, "agreement must have both outcomes"


def test_with_nothing_dropped_nothing_diverges(server, tiny):
    """Exactly 0; and without a reference nothing is said of one."""
    prompt, continuation = ids(300), {"token_ids": ids(40, 2)}
    for process in (server, tiny):
        plain = score(process, token_ids=prompt, kv=FULL, continuations=[continuation]).continuations[0]
        assert not plain.HasField("mean_kl")
        assert not any(token.HasField("kl") or token.HasField("top1_agrees") for token in plain.tokens)
        same = score(process, token_ids=prompt, kv=FULL, continuations=[continuation], reference=True).continuations[0]
        assert same.mean_kl == 0
        assert all(token.kl == 0 and token.top1_agrees for token in same.tokens)
        assert logprobs(same) == logprobs(plain)


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


def test_types_of_one_server_compare(tiny):
    fp32, bf16, int8, int4 = 1, 2, 3, 4  # KvType
    wanted = {"token_ids": ids(300), "continuations": [{"token_ids": ids(60, 1)}]}
    by_type = {}
    for key, value in ((fp32, fp32), (bf16, bf16), (int8, int8), (int4, int4), (int8, int4)):
        kv = {**FULL, "key_type": key, "value_type": value}
        response = score(tiny, kv=kv, **wanted)
        by_type[key, value] = np.array(logprobs(response.continuations[0]))
        assert {(layer.key_type, layer.value_type) for layer in response.cache.layers} == {(key, value)}
    exact = by_type.pop((fp32, fp32))
    assert logprobs(score(tiny, kv=FULL, **wanted).continuations[0]) == exact.tolist()
    error = {types: np.abs(values - exact).mean() for types, values in by_type.items()}
    print("mean error of a log-probability by type:", error)
    assert 0 < error[bf16, bf16] < error[int4, int4]
    assert 0 < error[int8, int8] < error[int8, int4] < error[int4, int4]


def test_many_continuations_share_one_prefill(tiny):
    before = tiny.metrics()["ripplekv_prompt_tokens_total"]
    response = score(tiny, token_ids=ids(300), continuations=[{"text": f"number {i}"} for i in range(256)])
    assert len(response.continuations) == 256
    assert tiny.metrics()["ripplekv_prompt_tokens_total"] - before == 300
    # Each as if it were alone.
    one = score(tiny, token_ids=ids(300), continuations=[{"text": "number 255"}])
    assert one.continuations[0] == response.continuations[255]


def test_refusals_name_their_field(tiny):
    made = tiny.decode.CreateContext(stubs().decode.CreateContextRequest(token_ids=ids(30)), timeout=60)
    context = made.context.context_id
    for fields, field in (
        ({"token_ids": ids(3)}, "continuations"),
        ({"token_ids": ids(3), "continuations": [{"text": "a"}] * 257}, "continuations"),
        ({"token_ids": ids(3), "continuations": [{}]}, "continuations[0]"),
        ({"token_ids": ids(3), "continuations": [{"token_ids": {"ids": [999]}}]}, "continuations[0].token_ids.ids[0]"),
        ({"token_ids": ids(3), "continuations": [{"text": "a"}], "kv": {"growth_cap": 16}}, "kv.growth_cap"),
        ({"context_id": context, "continuations": [{"text": "a"}], "reference": True}, "reference"),
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
