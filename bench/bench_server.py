"""What the subcommands of serving.py share: a server on a real model, clients that stream, waiting and quantiles."""

import asyncio
import contextlib
import math
import pathlib
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SOURCE / "tests" / "e2e"))

from service import Server, stubs  # noqa: E402
from streams import Answer, stream, until  # noqa: E402


def quantile(values, q):
    """The smallest value that at least a share q of them does not exceed."""
    return sorted(values)[math.ceil(q * len(values)) - 1]


def endless(ids, max_tokens, **more):
    return {"token_ids": {"ids": ids}, "stopping": {"max_tokens": max_tokens, "ignore_eos": True}, **more}


@contextlib.contextmanager
def server_of(arguments, **options):
    with tempfile.TemporaryDirectory(prefix="ripplekv-bench-") as folder:
        options = {
            "model": arguments.model,
            "threads": arguments.threads,
            "calibration": "off",
            "retention": arguments.retention,
            "min_positions": 0,
            "profile_dir": pathlib.Path(folder) / "profiles",
            **options,
        }
        with Server(arguments.build / "ripplekv-server", pathlib.Path(folder) / "log", **options) as server:
            yield server


@contextlib.asynccontextmanager
async def streaming(stub, requests, at_least=10):
    """Clients that stream while the block runs: their answers so far. Each has had `at_least` tokens at its start."""
    answers = [Answer() for _ in requests]
    tasks = [
        asyncio.create_task(stream(stub, answer, **request)) for request, answer in zip(requests, answers, strict=True)
    ]
    try:
        await until(lambda: all(len(answer.ids) >= at_least for answer in answers), 600, "the streams")
        yield answers
        over = [answer for answer in answers if answer.code is not None]
        assert not over, f"a stream ended before the measurement did: {over[0].code} {over[0].message}"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def gaps_between(answers, begin, end):
    return [gap for answer in answers for gap in answer.gaps(begin, end)]


def now():
    return asyncio.get_running_loop().time()  # time.monotonic()'s


async def idle(server):
    """Waits until no request is left: the metrics then."""
    metrics = None
    while metrics is None or metrics["ripplekv_requests_running"]:
        metrics = await asyncio.to_thread(server.metrics)
        await asyncio.sleep(0.05)
    return metrics


async def make_contexts(stub, prompts):
    """The prompts' compressed caches: requests over them start to decode at once, all together."""
    contexts = []
    for ids in prompts:
        request = stubs().decode.CreateContextRequest(token_ids={"ids": ids})
        contexts.append((await stub.CreateContext(request, timeout=600)).context.context_id)
    return contexts
