"""More load than the server can take: what it accepts it finishes, the rest it refuses at once."""

import asyncio
import collections
import statistics

import pytest

from service import wait_until
from streams import aio_stubs, capacity, offer
from tiny_model import write_tiny_llama

REQUEST = {"text": "Once upon a time", "stopping": {"max_tokens": 100, "ignore_eos": True}}

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def server(start_server, tmp_path_factory):
    model = write_tiny_llama(tmp_path_factory.mktemp("deep") / "deep.gguf", layers=16)
    return start_server(model=model, calibration="off", max_batch=4, max_queue=4)


def test_overload_is_refused_and_nothing_else_happens(server):
    async def run():
        channel, stub = aio_stubs(server.address)
        async with channel:
            rate = await capacity(stub, at_once=4, seconds=2, **REQUEST)
            return rate, await offer(stub, rate=4 * rate, seconds=10, **REQUEST)

    rate, answers = asyncio.run(run())
    codes = collections.Counter(answer.code.name for answer in answers)
    print(f"capacity {rate:.0f} requests/s; at 4 times as many: {dict(codes)}")
    assert set(codes) == {"OK", "RESOURCE_EXHAUSTED"}
    refused = [answer for answer in answers if not answer.ok]
    assert all(answer.retry and "--max-queue" in answer.message for answer in refused)
    assert all(len(answer.ids) == 100 and answer.complete is not None for answer in answers if answer.ok)
    # Offered were 40 seconds of work, for 10 seconds.
    assert len(refused) > len(answers) / 4
    assert codes["OK"] > 2 * rate
    assert statistics.median(answer.ended - answer.sent for answer in refused) < 1
    metrics = server.metrics()
    assert metrics['ripplekv_requests_refused_total{reason="queue_full"}'] == len(refused)
    assert metrics['ripplekv_requests_total{code="RESOURCE_EXHAUSTED",method="Generate"}'] == len(refused)
    wait_until(lambda: server.metrics()["ripplekv_requests_running"] == 0)
    assert server.metrics()["ripplekv_kv_used_bytes"] == 0
    answers = {tuple(answer.ids) for answer in answers if answer.ok}
    assert len(answers) == 1, "the same request got different answers"
