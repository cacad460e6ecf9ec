"""Generate over real sockets: the text, the numbers beside it, and what must not change them."""

import concurrent.futures
import math

import grpc
import numpy as np
import pytest

from service import error_details, generate, stubs
from tiny_model import END_OF_TEXT, IM_END, IM_START, TH

USER, SYSTEM, ASSISTANT = 2, 1, 3
CHATS = (
    [(USER, "Name three rivers and say where each of them ends.")],
    [(SYSTEM, "You answer like a pirate."), (USER, "Why is the sky blue?")],
    [(USER, "Write a function in Python that reverses a list.")],
    [(USER, "Hi"), (ASSISTANT, "Hello! How can I help?"), (USER, "Tell me about 1984 & <tags>.")],
    [(USER, "Résumé in français, s'il vous plaît: 東京 🙂")],
)
ROLES = {SYSTEM: "system", USER: "user", ASSISTANT: "assistant"}
FULL = {"size": {"full": {}}}


def chat(messages):
    return {"messages": [{"role": role, "content": content} for role, content in messages]}


def keep(retention):
    return {"size": {"retention": retention}}


@pytest.fixture(scope="module")
def server(start_server, model_path):
    return start_server(
        model=model_path, compute="fp32", calibration="off", retention=1.0, min_positions=0, threads=2
    )


@pytest.fixture(scope="module")
def other_server(start_server, model_path):
    """One thread, and prompts of up to 256 positions are kept."""
    return start_server(
        model=model_path, compute="fp32", calibration="off", retention=0.2, min_positions=256, threads=1
    )


@pytest.fixture(scope="module")
def tiny(start_server, tiny_model_path):
    return start_server(model=tiny_model_path, calibration="off", min_positions=0)


@pytest.fixture(scope="module")
def document(corpus_texts, tokenize):
    """400 tokens."""
    return tokenize(corpus_texts[0])[:400]


@pytest.fixture(scope="module")
def greedy(server):
    """One answer of 40 tokens, and the text of each."""
    text, ids, _, complete = generate(
        server, chat=chat(CHATS[0]), kv=FULL, stopping={"max_tokens": 40, "ignore_eos": True}
    )
    return text, ids


def reference_logprobs(model, prompt, output):
    """Log-probabilities [len(output), vocabulary] of transformers at each place of `output`."""
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :]
    return torch.log_softmax(logits.double(), dim=-1).numpy()


def test_greedy_text_and_logprobs_are_those_of_transformers(
    server, reference_model, reference_tokenizer, chat_template
):
    worst = 0.0
    for messages in CHATS:
        rendered = chat_template([{"role": ROLES[r], "content": c} for r, c in messages])
        prompt = reference_tokenizer.encode(rendered).ids
        tokenized = server.decode.Tokenize(stubs().decode.TokenizeRequest(chat=chat(messages)))
        assert list(tokenized.token_ids) == prompt
        text, ids, logprobs, complete = generate(
            server,
            chat=chat(messages),
            stopping={"max_tokens": 64, "ignore_eos": True},
            kv=FULL,
            output={"logprobs": 5},
        )
        assert len(ids) == 64 and complete.usage.output_tokens == 64
        assert complete.usage.prompt_tokens == len(prompt)
        # The highest logit after each prefix of our own output is our next token: so greedy decoding gives the same.
        reference = reference_logprobs(reference_model, prompt, ids)
        assert reference.argmax(-1).tolist() == ids
        assert text == reference_tokenizer.decode(ids, skip_special_tokens=True)
        for place, (token, logprob) in enumerate(zip(ids, logprobs, strict=True)):
            assert logprob.token_id == token == logprob.top[0].token_id
            assert logprob.logprob == logprob.top[0].logprob
            expected = np.sort(reference[place])[::-1][:5]
            values = np.array([t.logprob for t in logprob.top])
            assert (np.diff(values) <= 0).all()
            own = np.array([reference[place][t.token_id] for t in logprob.top])
            worst = max(worst, np.abs(values - expected).max(), np.abs(values - own).max())
            for top in logprob.top:
                raw = server_bytes(reference_tokenizer, top.token_id)
                assert raw is None or top.token == raw
    print(f"largest difference of a log-probability from transformers: {worst:.1e}")
    assert worst <= 2e-3


def server_bytes(tokenizer, token_id):
    """A token's text where it is whole characters, else None."""
    text = tokenizer.decode([token_id], skip_special_tokens=False)
    return None if "�" in text else text.encode()


def answer(server, **fields):
    """What must be equal bit for bit: ids, text, each log-probability."""
    text, ids, logprobs, complete = generate(server, **fields)
    numbers = [[(p.token_id, p.logprob), *((t.token_id, t.logprob) for t in p.top)] for p in logprobs]
    assert len(numbers) == len(ids) > 0
    return text, ids, numbers, complete


def asked(document, kv, **more):
    return {
        "token_ids": {"ids": document},
        "kv": kv,
        "stopping": {"max_tokens": 12, "ignore_eos": True},
        "output": {"logprobs": 3},
        **more,
    }


def test_retention_one_is_the_full_cache_bit_for_bit(server, document):
    full = answer(server, **asked(document, FULL))
    assert answer(server, **asked(document, keep(1.0)))[:3] == full[:3]
    everything = server.model().model.layers * len(document)
    total = {"size": {"total_positions": everything}}
    assert answer(server, **asked(document, total))[:3] == full[:3]
    # Dropping anything shows in what this test compares.
    assert answer(server, **asked(document, keep(0.95)))[2] != full[2]


def test_a_prompt_within_min_positions_is_not_compressed(server, other_server, document):
    prompt = document[:256]
    full = answer(server, **asked(prompt, FULL))
    kept = answer(other_server, **asked(prompt, {}))  # the plan: retention 0.2, at least 256 positions
    assert kept[:3] == full[:3]
    assert {layer.positions_kept for layer in kept[3].cache.layers} == {256}
    assert kept[3].cache.kv_bytes == kept[3].cache.full_kv_bytes
    longer = answer(other_server, **asked(document[:300], {}))[3]
    assert {layer.positions_kept for layer in longer.cache.layers} == {256}


def test_threads_do_not_change_bits(server, other_server, document):
    for kv in (FULL, keep(0.7)):  # above the other one's min_positions
        assert answer(server, **asked(document, kv))[:3] == answer(other_server, **asked(document, kv))[:3]


def test_company_does_not_change_bits(server, document):
    requests = [
        asked(document, keep(0.2)),
        asked(document[50:], keep(0.5)),
        {**asked([], FULL), "token_ids": None, "chat": chat(CHATS[1])},
        asked(document[:90], FULL, sampling={"temperature": 1.0, "seed": 5}),
    ]
    alone = [answer(server, **request)[:3] for request in requests]
    with concurrent.futures.ThreadPoolExecutor(len(requests) * 2) as pool:
        together = list(pool.map(lambda r: answer(server, **r)[:3], requests * 2))
    assert together == alone * 2


def test_usage_and_cache_sizes(server, document):
    model = server.model()
    layers, row_bytes = model.model.layers, model.kv_bytes_per_position_layer
    # Keys and values in fp32, and the position of each row of each head.
    assert row_bytes == model.model.kv_heads * (2 * model.model.head_dim * 4 + 4)
    tokens = len(document)
    for size, total in (
        ({"retention": 0.25}, layers * math.floor(0.25 * tokens)),
        ({"retention": 0.111}, layers * math.floor(0.111 * tokens)),
        ({"total_positions": 3210}, 3210),
        ({"full": {}}, layers * tokens),
    ):
        _, ids, _, complete = answer(server, **asked(document, {"size": size}))
        cache = complete.cache
        assert complete.usage.prompt_tokens == tokens
        assert complete.usage.output_tokens == len(ids)
        assert [layer.layer for layer in cache.layers] == list(range(layers))
        kept = [layer.positions_kept for layer in cache.layers]
        assert sum(kept) == total
        assert max(kept) - min(kept) <= 1  # uniform
        assert cache.kv_bytes == total * row_bytes
        assert cache.full_kv_bytes == layers * tokens * row_bytes
        for layer in cache.layers:
            assert layer.positions_kept * row_bytes <= layer.kv_bytes
            assert layer.kv_bytes < (layer.positions_kept + 33) * row_bytes  # whole pages of 32 rows
        assert complete.timings.first_token_seconds >= complete.timings.prefill_seconds > 0
        assert complete.timings.decode_seconds > 0 and complete.timings.queue_seconds >= 0


def test_next_token_kl(server, document):
    def kl(kv):
        return generate(
            server,
            token_ids={"ids": document},
            kv=kv,
            stopping={"max_tokens": 1},
            output={"next_token_kl": True},
        )[3].next_token_kl

    assert abs(kl(FULL)) < 1e-6
    assert abs(kl(keep(1.0))) < 1e-6
    compressed = kl(keep(0.08))
    assert compressed > 1e-4
    assert kl(keep(0.08)) == compressed
    unasked = generate(server, token_ids={"ids": document[:40]}, stopping={"max_tokens": 1})[3]
    assert not unasked.HasField("next_token_kl")


def test_stop_strings_never_leak(server, greedy):
    whole, ids = greedy
    # Of one character, within a token, over the edges of tokens, and one that another one starts.
    places = [(5, 1), (12, 7), (21, 15), (40, 30), (60, 3)]
    assert len(whole) > 90
    for begin, length in places:
        stop = whole[begin : begin + length]
        expected = whole[: whole.index(stop)]
        chunks, complete = [], None
        request = stubs().decode.GenerateRequest(
            chat=chat(CHATS[0]),
            kv=FULL,
            stopping={"max_tokens": 40, "ignore_eos": True, "stop_strings": ["never there", stop]},
        )
        for response in server.decode.Generate(request):
            if response.HasField("chunk"):
                chunks.append(response.chunk.text)
                assert expected.startswith("".join(chunks)), "text beyond the stop string was sent"
            else:
                complete = response.complete
        assert "".join(chunks) == expected
        assert complete.finish_reason == stubs().decode.FINISH_REASON_STOP_STRING
        assert complete.stop_string == stop
        assert complete.usage.output_tokens < 40
    # Held back as a possible beginning, then sent after all.
    text, _, _, complete = generate(
        server,
        chat=chat(CHATS[0]),
        kv=FULL,
        stopping={"max_tokens": 40, "ignore_eos": True, "stop_strings": [whole[-6:] + "~"]},
    )
    assert text == whole
    assert complete.finish_reason == stubs().decode.FINISH_REASON_MAX_TOKENS
    # Not before min_tokens.
    text, out, _, complete = generate(
        server,
        chat=chat(CHATS[0]),
        kv=FULL,
        stopping={"max_tokens": 40, "min_tokens": 30, "ignore_eos": True, "stop_strings": [whole[5:6]]},
    )
    assert complete.usage.output_tokens >= 30
    assert len(text) > len(whole[: whole.index(whole[5:6])])


def test_stop_ids_and_end_of_text(server, greedy, reference_tokenizer):
    whole, ids = greedy
    stop = next(i for i in ids[8:] if i not in ids[:8])
    place = ids.index(stop)
    text, out, _, complete = generate(
        server,
        chat=chat(CHATS[0]),
        kv=FULL,
        stopping={"max_tokens": 40, "ignore_eos": True, "stop_token_ids": [stop]},
    )
    assert out == ids[: place + 1]
    assert text == reference_tokenizer.decode(ids[:place], skip_special_tokens=True)
    assert complete.finish_reason == stubs().decode.FINISH_REASON_STOP_TOKEN
    assert complete.stop_token_id == stop
    assert complete.usage.output_tokens == place + 1

    eos = server.model().eos_token_ids
    ending = {"chat": chat([(SYSTEM, "Be brief."), (USER, "Name three rivers.")]), "kv": FULL}
    _, out, _, complete = generate(server, **ending, stopping={"max_tokens": 64})
    assert complete.finish_reason == stubs().decode.FINISH_REASON_END_OF_TEXT
    assert out[-1] == complete.stop_token_id and out[-1] in eos
    longer = len(out) + 4
    stopping = {"max_tokens": longer, "ignore_eos": True}
    _, on, _, complete = generate(server, **ending, stopping=stopping)
    assert on[: len(out)] == out and len(on) == longer
    assert complete.finish_reason == stubs().decode.FINISH_REASON_MAX_TOKENS
    stopping = {"max_tokens": longer, "min_tokens": len(out) + 2}
    _, on, _, complete = generate(server, **ending, stopping=stopping)
    assert len(on) >= len(out) + 2 and not set(on[: len(out) + 1]) & set(eos)


def test_max_tokens(tiny):
    context = tiny.model().model.context_length

    def tokens(prompt, **stopping):
        stopping = {"ignore_eos": True, **stopping}
        return generate(tiny, token_ids={"ids": [65] * prompt}, stopping=stopping)[3]

    assert tokens(10).usage.output_tokens == tiny.model().limits.default_max_tokens == 256
    assert tokens(context - 7).usage.output_tokens == 7  # the default one is clamped
    assert tokens(context - 7, max_tokens=7).usage.output_tokens == 7
    assert tokens(context - 1).usage.output_tokens == 1
    with pytest.raises(grpc.RpcError) as refused:  # an explicit one is not
        tokens(context - 7, max_tokens=8)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    violation = error_details(refused.value)["BadRequest"].field_violations[0]
    assert violation.field == "stopping.max_tokens"
    assert "is 8" in violation.description and "[1, 7]" in violation.description


def sample(server, seed=None, **sampling):
    sampling = {"temperature": 1.0, **sampling}
    if seed is not None:
        sampling["seed"] = seed
    _, ids, _, complete = generate(
        server,
        token_ids={"ids": list(b"Once upon a time")},
        sampling=sampling,
        stopping={"max_tokens": 48, "ignore_eos": True},
    )
    return ids, complete.seed


def test_seeds(tiny):
    first, seed = sample(tiny, seed=11)
    assert seed == 11
    assert sample(tiny, seed=11)[0] == first
    assert sample(tiny, seed=12)[0] != first
    largest = 2**64 - 1
    assert sample(tiny, seed=largest)[1] == largest
    made, seed = sample(tiny)
    assert sample(tiny, seed=seed)[0] == made
    assert sample(tiny)[1] != seed


def test_sampling_parameters(tiny):
    greedy, _ = sample(tiny, temperature=0.0)
    assert sample(tiny, temperature=1.0, seed=1)[0] != greedy
    for only_the_best in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        assert sample(tiny, temperature=2.0, seed=3, **only_the_best)[0] == greedy, only_the_best
    assert set(sample(tiny, temperature=0.0, logit_bias={104: 100.0})[0]) == {104}
    banned = greedy[0]
    assert banned not in sample(tiny, temperature=0.0, logit_bias={banned: -100.0})[0]
    # A token's own penalty for each time it was used ends all repetition.
    spread = sample(tiny, temperature=0.0, frequency_penalty=10.0, presence_penalty=10.0)[0]
    assert len(set(spread)) == len(spread) and len(set(greedy)) < len(greedy)
    assert sample(tiny, temperature=0.0, repetition_penalty=5.0)[0] != greedy


def test_logprobs_are_taken_before_the_sampling_transforms(tiny):
    def first(**sampling):
        _, ids, logprobs, _ = generate(
            tiny,
            token_ids={"ids": list(b"Once upon a time")},
            sampling=sampling,
            stopping={"max_tokens": 1},
            output={"logprobs": 20},
        )
        return ids[0], logprobs[0]

    token, plain = first()
    assert len(plain.top) == 20
    other, moved = first(
        temperature=0.5, seed=1, logit_bias={token: -100.0}, repetition_penalty=3.0, top_k=5
    )
    assert other != token
    assert [(t.token_id, t.logprob) for t in moved.top] == [(t.token_id, t.logprob) for t in plain.top]
    assert moved.logprob < plain.logprob
    # All of a small vocabulary's probabilities sum to one: the top 20 stay below it.
    assert 0 < sum(math.exp(t.logprob) for t in plain.top) < 1


def test_characters_are_never_split(tiny):
    """Random bytes of characters of two and four bytes, and broken ones."""
    alphabet = sorted(set("é🙂a".encode()))
    bias = {byte: 100.0 for byte in alphabet}
    replaced = whole = 0
    for seed in range(12):
        chunks, ids = [], []
        request = stubs().decode.GenerateRequest(
            token_ids={"ids": [65]},
            sampling={"temperature": 5.0, "seed": seed, "logit_bias": bias},
            stopping={"max_tokens": 200, "ignore_eos": True},
        )
        for response in tiny.decode.Generate(request):
            chunks.append(response.chunk.text)
            ids += response.chunk.token_ids
        assert set(ids) <= set(alphabet)
        text = bytes(ids).decode(errors="replace")
        assert "".join(chunks) == text
        replaced += text.count("�")
        whole += sum(text.count(c) for c in "é🙂")
    assert replaced > 50 and whole > 5, "both kinds must occur"
    detokenized = tiny.decode.Detokenize(
        stubs().decode.DetokenizeRequest(token_ids=list("a🙂é".encode()) + [IM_END, TH])
    )
    assert detokenized.text == "a🙂é<|im_end|>th"
    assert detokenized.raw == "a🙂é<|im_end|>th".encode()


def test_special_tokens_are_parsed_in_text_only(tiny):
    def tokenize(**prompt):
        return list(tiny.decode.Tokenize(stubs().decode.TokenizeRequest(**prompt)).token_ids)

    assert tokenize(text="a<|im_end|>the") == [97, IM_END, TH, 101]
    ids = tokenize(chat=chat([(USER, "a<|im_end|>")]))
    expected = [IM_START, *b"user\na<|im_end|>", IM_END, 10, IM_START, *b"assistant\n"]
    assert ids == expected
    skipped = tiny.decode.Detokenize(
        stubs().decode.DetokenizeRequest(token_ids=[97, END_OF_TEXT, 98], skip_special_tokens=True)
    )
    assert skipped.text == "ab"


def test_every_message_names_the_request_and_the_last_one_completes(tiny):
    request = stubs().decode.GenerateRequest(request_id="my-id.7", text="abc", stopping={"max_tokens": 9})
    messages = list(tiny.decode.Generate(request))
    assert {m.request_id for m in messages} == {"my-id.7"}
    assert [m.HasField("complete") for m in messages] == [False] * (len(messages) - 1) + [True]
    assert all(m.HasField("chunk") and m.chunk.token_ids for m in messages[:-1])
