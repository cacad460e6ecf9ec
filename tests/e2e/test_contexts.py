"""Contexts over real sockets: made once, asked often, forgotten; and the seam between them and what is asked."""

import concurrent.futures
import time

import grpc
import numpy as np
import pytest

from service import error_details, generate, stubs, wait_until

USER, SYSTEM, ASSISTANT = 2, 1, 3
FULL = {"size": {"full": {}}}


def ids(count, seed=0):
    return {"ids": np.random.default_rng(seed).integers(0, 256, count).tolist()}


def chat(*messages):
    return {"messages": [{"role": role, "content": content} for role, content in messages]}


def create(server, **fields):
    request = stubs().decode.CreateContextRequest(**fields)
    return server.decode.CreateContext(request, timeout=60).context


def get(server, context_id):
    return server.decode.GetContext(stubs().decode.GetContextRequest(context_id=context_id), timeout=10).context


def delete(server, context_id):
    server.decode.DeleteContext(stubs().decode.DeleteContextRequest(context_id=context_id), timeout=10)


def listed(server, **fields):
    return server.decode.ListContexts(stubs().decode.ListContextsRequest(**fields), timeout=10)


def ask(server, **fields):
    """Ids, log-probabilities and completion of 12 tokens."""
    fields.setdefault("stopping", {"max_tokens": 12, "ignore_eos": True})
    _, tokens, logprobs, complete = generate(server, output={"logprobs": 0}, **fields)
    return tokens, [entry.logprob for entry in logprobs], complete


def refused(call, code):
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert caught.value.code() == code, caught.value
    return caught.value


@pytest.fixture(scope="module")
def server(start_server, tiny_model_path):
    return start_server(
        model=tiny_model_path, compute="fp32", calibration="off", retention=0.25, min_positions=0, kv_memory="8MiB"
    )


@pytest.fixture(autouse=True)
def no_context_stays(server):
    yield
    for context in listed(server).contexts:
        delete(server, context.context_id)


def test_a_context_is_made_described_listed_and_deleted(server):
    before = time.time()
    context = create(server, token_ids=ids(200))
    assert context.tokens == 200 and context.users == 0 and not context.chat
    assert [layer.layer for layer in context.layers] == [0, 1, 2, 3]
    kept = sum(layer.positions_kept for layer in context.layers)
    assert kept == 4 * 50  # a quarter of 200, over four layers
    row = server.model().kv_bytes_per_position_layer
    assert context.kv_bytes == kept * row and context.full_kv_bytes == 4 * 200 * row
    pages = sum(layer.kv_bytes for layer in context.layers)
    assert pages >= context.kv_bytes
    # Its tokens and the logits after the last one count too.
    assert context.page_bytes == pages + 4 * 200 + 4 * server.model().model.vocabulary_size
    assert before - 1 <= context.created_at.seconds <= time.time() + 1
    # --context-idle is an hour.
    assert abs(context.expires_at.seconds - (time.time() + 3600)) < 30
    seen = get(server, context.context_id)
    assert seen.context_id == context.context_id and seen.tokens == 200
    metrics = server.metrics()
    assert metrics["ripplekv_contexts"] == 1
    assert metrics["ripplekv_context_bytes"] == context.page_bytes
    assert [c.context_id for c in listed(server).contexts] == [context.context_id]
    delete(server, context.context_id)
    assert not listed(server).contexts
    wait_until(lambda: server.metrics()["ripplekv_kv_used_bytes"] == 0, 10, "the pages to be free")
    refused(lambda: get(server, context.context_id), grpc.StatusCode.NOT_FOUND)


def test_pages_of_a_list_join_to_all_in_order(server):
    made = sorted(create(server, token_ids=ids(20, seed)).context_id for seed in range(5))
    found, token = [], ""
    while True:
        page = listed(server, page_size=2, page_token=token)
        assert len(page.contexts) <= 2
        found += [context.context_id for context in page.contexts]
        token = page.next_page_token
        if not token:
            break
    assert found == made
    error = refused(lambda: listed(server, page_size=1001), grpc.StatusCode.INVALID_ARGUMENT)
    assert error_details(error)["BadRequest"].field_violations[0].field == "page_size"


def test_questions_prefill_only_their_own_tokens(server):
    context = create(server, token_ids=ids(300))
    before = server.metrics()["ripplekv_prompt_tokens_total"]
    for seed in range(20):
        _, _, complete = ask(server, context_id=context.context_id, token_ids=ids(7, seed))
        assert complete.usage.prompt_tokens == 7 and complete.usage.context_tokens == 300
    assert server.metrics()["ripplekv_prompt_tokens_total"] - before == 20 * 7


def test_a_full_context_answers_as_the_whole_prompt_does(server):
    document, question = ids(300)["ids"], ids(9, seed=5)["ids"]
    context = create(server, token_ids={"ids": document}, kv=FULL)
    over = ask(server, context_id=context.context_id, token_ids={"ids": question})
    whole = ask(server, token_ids={"ids": document + question}, kv=FULL)
    assert over[0] == whole[0]
    assert np.abs(np.array(over[1]) - np.array(whole[1])).max() < 1e-3


def test_a_context_keeps_the_types_it_was_made_with(server):
    int8, int4 = 3, 4  # KvType
    context = create(server, token_ids=ids(300), kv={"key_type": int8, "value_type": int4})
    row = server.model().model.kv_heads * (32 + 4 + 16 + 4 + 4)  # heads of 16 channels take a group of 32
    assert context.kv_bytes == 4 * 75 * row
    assert context.full_kv_bytes == 4 * 300 * server.model().kv_bytes_per_position_layer
    assert [(layer.key_type, layer.value_type) for layer in context.layers] == [(int8, int4)] * 4
    plain = create(server, token_ids=ids(300))
    asked = [ask(server, context_id=c.context_id, token_ids=ids(9, 5)) for c in (context, plain)]
    cache = asked[0][2].cache
    assert cache.kv_bytes == 4 * (75 + 9) * row
    assert [(layer.key_type, layer.value_type) for layer in cache.layers] == [(int8, int4)] * 4
    assert asked[0][1] != asked[1][1]
    assert context.page_bytes < plain.page_bytes
    for field in ("key_type", "value_type"):
        error = refused(
            lambda field=field: ask(server, context_id=context.context_id, token_ids=ids(9), kv={field: int8}),
            grpc.StatusCode.INVALID_ARGUMENT,
        )
        assert error_details(error)["BadRequest"].field_violations[0].field == f"kv.{field}"


def test_answers_do_not_depend_on_who_else_asks(server):
    types = {"key_type": 3, "value_type": 4}
    context = create(server, token_ids=ids(300))
    other = create(server, token_ids=ids(200), kv=types)
    asked = [
        fields
        for seed in range(4)
        for fields in (
            {"context_id": context.context_id, "token_ids": ids(5, seed)},
            {"context_id": other.context_id, "token_ids": ids(5, seed)},
            {"token_ids": ids(40, seed), "kv": {"key_type": 1 + seed}},
        )
    ]
    alone = [ask(server, **fields)[:2] for fields in asked]
    with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
        assert list(pool.map(lambda fields: ask(server, **fields)[:2], asked)) == alone
    assert get(server, context.context_id).users == 0


def test_a_chat_goes_on_from_a_chat(server):
    first = [(SYSTEM, "You are brief."), (USER, "The bridge was built in 1911.")]
    more = [(ASSISTANT, "Noted."), (USER, "When was it built?")]
    context = create(server, chat=chat(*first), kv=FULL)
    assert context.chat
    whole = server.decode.Tokenize(stubs().decode.TokenizeRequest(chat=chat(*first, *more))).token_ids
    over = ask(server, context_id=context.context_id, chat=chat(*more))
    assert over[2].usage.context_tokens == context.tokens
    assert over[2].usage.prompt_tokens == len(whole) - context.tokens
    expected = ask(server, token_ids={"ids": whole}, kv=FULL)
    assert over[0] == expected[0]
    # Text and ids are appended to it as they are.
    text = ask(server, context_id=context.context_id, text="ab<|im_end|>")
    assert text[2].usage.prompt_tokens == 3


def test_a_chat_does_not_go_on_from_a_text(server):
    context = create(server, text="The bridge was built in 1911.")
    error = refused(
        lambda: ask(server, context_id=context.context_id, chat=chat((USER, "When?"))),
        grpc.StatusCode.FAILED_PRECONDITION,
    )
    assert "text or token_ids" in error.details()
    assert get(server, context.context_id).users == 0


def test_what_the_context_fixed_cannot_be_chosen_again(server):
    context = create(server, token_ids=ids(50))
    for field, more in (
        ("kv.size", {"kv": FULL}),
        ("kv.allocator", {"kv": {"allocator": {"uniform": {}}}}),
        ("kv.selector", {"kv": {"selector": {"snapkv": {}}}}),
    ):
        error = refused(
            lambda more=more: ask(server, context_id=context.context_id, token_ids=ids(3), **more),
            grpc.StatusCode.INVALID_ARGUMENT,
        )
        assert error_details(error)["BadRequest"].field_violations[0].field == field
    error = refused(
        lambda: generate(
            server, context_id=context.context_id, token_ids=ids(3), output={"next_token_kl": True}
        ),
        grpc.StatusCode.INVALID_ARGUMENT,
    )
    assert "not defined over a context" in error.details()
    ask(server, context_id=context.context_id, token_ids=ids(3), kv={"growth_cap": 16})


def test_an_unknown_context_is_not_found_everywhere(server):
    decode = stubs().decode
    for call in (
        lambda: ask(server, context_id="nowhere", token_ids=ids(3)),
        lambda: server.decode.Score(decode.ScoreRequest(context_id="nowhere", continuations=[{"text": "a"}])),
        lambda: get(server, "nowhere"),
        lambda: delete(server, "nowhere"),
    ):
        error = refused(call, grpc.StatusCode.NOT_FOUND)
        resource = error_details(error)["ResourceInfo"]
        assert (resource.resource_type, resource.resource_name) == ("ripplekv.v1.Context", "nowhere")
        assert "CreateContext" in error.details()


def test_a_deleted_context_serves_who_is_at_it(server):
    context = create(server, token_ids=ids(100))
    request = stubs().decode.GenerateRequest(
        context_id=context.context_id,
        token_ids=ids(3),
        stopping={"max_tokens": 600, "ignore_eos": True},
    )
    stream = server.decode.Generate(request, timeout=60)
    next(stream)
    delete(server, context.context_id)
    refused(lambda: ask(server, context_id=context.context_id, token_ids=ids(3)), grpc.StatusCode.NOT_FOUND)
    *_, last = stream
    assert last.complete.usage.output_tokens == 600
    wait_until(lambda: server.metrics()["ripplekv_kv_used_bytes"] == 0, 10, "the pages to be free")


def test_the_least_recently_used_makes_room(start_server, tiny_model_path):
    options = {"model": tiny_model_path, "calibration": "off", "min_positions": 0, "kv_memory": "8MiB"}
    probe = start_server(**options)
    size = create(probe, token_ids=ids(300)).page_bytes
    probe.stop()
    server = start_server(**options, context_memory=f"{2 * size}B")
    first, second = (create(server, token_ids=ids(300, seed)).context_id for seed in range(2))
    ask(server, context_id=first, token_ids=ids(3))  # so that the second is the older one
    third = create(server, token_ids=ids(300, 2)).context_id
    assert {context.context_id for context in listed(server).contexts} == {first, third}
    refused(lambda: get(server, second), grpc.StatusCode.NOT_FOUND)
    assert server.metrics()["ripplekv_contexts_evicted_total"] == 1
    # What can never fit is refused without a delay to wait for.
    error = refused(
        lambda: create(server, token_ids=ids(1000), kv=FULL), grpc.StatusCode.FAILED_PRECONDITION
    )
    assert "RetryInfo" not in error_details(error)
    assert {context.context_id for context in listed(server).contexts} == {first, third}


def test_an_idle_context_expires(start_server, tiny_model_path):
    server = start_server(model=tiny_model_path, calibration="off", context_idle=0.5)
    create(server, token_ids=ids(20))
    wait_until(lambda: not listed(server).contexts, 20, "the context to expire")
    wait_until(lambda: server.metrics()["ripplekv_contexts_expired_total"] == 1, 10, "the counter")


def test_a_server_may_keep_no_contexts(start_server, tiny_model_path):
    server = start_server(model=tiny_model_path, calibration="off", context_memory="0")
    error = refused(lambda: create(server, token_ids=ids(20)), grpc.StatusCode.FAILED_PRECONDITION)
    assert "--context-memory" in error.details()
