"""A client that does not read holds up nobody, and is dropped."""

import time

import grpc
import pytest

from service import generate, stubs, wait_until
from tiny_model import write_tiny_llama

# Messages that no window takes: each token with the 20 most probable ones at its place.
LARGE = {"stopping": {"max_tokens": 3000, "ignore_eos": True}, "output": {"logprobs": 20}}
# Neither side widens the window of a stream nobody reads.
NARROW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16384)]


@pytest.fixture(scope="module")
def server(start_server, tmp_path_factory):
    model = write_tiny_llama(tmp_path_factory.mktemp("tiny") / "long.gguf", context=8192)
    return start_server(
        model=model, calibration="off", slow_reader_timeout=1.5, log_format="json", max_batch=2, kv_memory="64MiB"
    )


def stuck_call(server):
    """A call that is never read."""
    channel = grpc.insecure_channel(server.address, options=NARROW)
    stub = stubs().decode_grpc.DecodeServiceStub(channel)
    request = stubs().decode.GenerateRequest(request_id="stuck", text="Once", **LARGE)
    return channel, stub.Generate(request)


def test_it_is_dropped_and_others_go_on(server):
    dropped = server.metrics()["ripplekv_slow_readers_dropped_total"]
    channel, call = stuck_call(server)
    wait_until(lambda: server.metrics()["ripplekv_requests_admitted_total"] >= 1, 10, "the call to run")
    for _ in range(3):
        _, ids, _, _ = generate(server, text="Twice", stopping={"max_tokens": 50, "ignore_eos": True})
        assert len(ids) == 50
    wait_until(
        lambda: server.metrics()["ripplekv_slow_readers_dropped_total"] == dropped + 1, 20, "it to be dropped"
    )
    wait_until(
        lambda: server.metrics()["ripplekv_requests_running"] == 0
        and server.metrics()["ripplekv_kv_used_bytes"] == 0,
        20,
        "slot and pages to be free",
    )
    assert [event["request_id"] for event in server.events("slow_reader_dropped")] == ["stuck"]
    # The call is over for the server, and the client hears of it when it reads.
    wait_until(
        lambda: any(e["request_id"] == "stuck" and e["code"] == "CANCELLED" for e in server.events("call")),
        20,
        "the call to end",
    )
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert caught.value.code() == grpc.StatusCode.CANCELLED
    channel.close()


def test_a_slow_reader_that_reads_is_not_dropped(server):
    dropped = server.metrics()["ripplekv_slow_readers_dropped_total"]
    channel, call = stuck_call(server)
    ids = []
    complete = None
    for response in call:
        ids += response.chunk.token_ids
        complete = response.complete if response.HasField("complete") else complete
        time.sleep(0.02)
    channel.close()
    assert len(ids) == 3000 == complete.usage.output_tokens
    assert server.metrics()["ripplekv_slow_readers_dropped_total"] == dropped
