"""How many requests fit, as PlanBudgets and `ripplekv plan --memory` say, beside what admission does."""

import json
import subprocess

import grpc
import pytest

from conftest import binary
from service import stubs, wait_until
from tiny_model import write_tiny_llama

CONTEXT, PROMPT = 4096, 900


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("capacity") / "tiny.gguf", layers=4, context=CONTEXT)


def start(start_server, model, **options):
    options = {"kv_memory": "4MiB", "retention": 0.5, "calibration": "off", "threads": 1, **options}
    return start_server(model=model, **options)


def plan(server, **fields):
    request = stubs().calibration.PlanBudgetsRequest(prompt_tokens=PROMPT, **fields)
    return server.calibration.PlanBudgets(request, timeout=20)


def running(server, asked, output):
    """How many of so many requests run at once; the rest waits."""
    request = stubs().decode.GenerateRequest(
        token_ids={"ids": [65 + i % 26 for i in range(PROMPT)]}, stopping={"max_tokens": output, "ignore_eos": True}
    )
    calls = [server.decode.Generate(request) for _ in range(asked)]
    try:
        seen = []

        def settled():
            metrics = server.metrics()
            run, wait = metrics["ripplekv_requests_running"], metrics["ripplekv_requests_waiting"]
            seen.append(run if run + wait == asked and metrics["ripplekv_requests_prefilling"] == 0 else None)
            return seen[-1] if len(seen) > 4 and len(set(seen[-4:])) == 1 else None

        return wait_until(settled, what="all prompts of those that fit to be read")
    finally:
        for call in calls:
            call.cancel()
        wait_until(lambda: server.metrics()["ripplekv_requests_running"] == 0)


CASES = {
    "kv memory": ({}, "by_kv_memory"),
    "growth cap": ({"growth_cap": 64}, "by_kv_memory"),
    "int8 rows": ({"kv_type": "int8", "kv_memory": "3MiB"}, "by_kv_memory"),
    "batch": ({"kv_memory": "64MiB", "max_batch": 3}, "max_batch"),
    # Growth that is bounded counts what every row was attended to.
    "work memory": (
        {"kv_memory": "64MiB", "work_memory": "1MiB", "growth_cap": 2048, "retention": 1.0},
        "by_work_memory",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_as_many_run_as_were_foretold(start_server, model, case):
    options, limit = CASES[case]
    server = start(start_server, model, **options)
    memory = server.model().limits.kv_memory_bytes
    output = CONTEXT - PROMPT
    capacity = plan(server, memory_bytes=memory, output_tokens=output).capacity
    assert 1 <= capacity.requests == getattr(capacity, limit) < 16
    assert capacity.pages == server.metrics()["ripplekv_kv_pages"]
    assert capacity.requests == min(capacity.by_kv_memory, capacity.by_work_memory, capacity.max_batch)
    assert running(server, int(capacity.requests) + 2, output) == capacity.requests


def test_a_request_that_does_not_say_gets_the_default(start_server, model):
    server = start(start_server, model)
    assert not plan(server).HasField("capacity")
    assert plan(server, memory_bytes=1 << 30).capacity.output_tokens == server.model().limits.default_max_tokens
    half = plan(server, memory_bytes=1 << 30, output_tokens=2000).capacity
    assert half.output_tokens == 2000 and half.request_pages > plan(server, memory_bytes=1 << 30).capacity.request_pages


def test_what_cannot_be_reckoned_is_said(start_server, model):
    server = start(start_server, model)
    for fields, words in (
        ({"memory_bytes": 1000}, ("memory_bytes is 1000 bytes", "take")),
        ({"memory_bytes": -1}, ("memory_bytes is -1",)),
        ({"memory_bytes": 1 << 30, "output_tokens": 0}, ("output_tokens is 0", f"1 to {CONTEXT - PROMPT}")),
        ({"memory_bytes": 1 << 30, "output_tokens": 4000}, ("output_tokens is 4000",)),
        ({"output_tokens": 5}, ("output_tokens", "memory_bytes")),
        ({"memory_bytes": 1 << 30, "inline": {"mean_kl": [1, 2]}}, ("memory_bytes", "2 layers", "has 4")),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            plan(server, **fields)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        for word in words:
            assert word in refused.value.details(), refused.value.details()


def test_the_command(start_server, model):
    server = start(start_server, model)

    def run(*arguments):
        words = [str(binary("ripplekv")), "--server", server.address, "plan", "-t", str(PROMPT), *arguments]
        return subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)

    capacity = plan(server, memory_bytes=4 << 20, output_tokens=100).capacity
    done = run("--memory", "4MiB", "--output-tokens", "100")
    assert done.returncode == 0, done.stderr
    assert f"{capacity.requests} requests of 900 + 100 tokens at once" in done.stdout
    assert f"{capacity.request_pages} of {capacity.pages} pages" in done.stdout.replace(",", "")
    found = json.loads(run("--memory", "4MiB", "--output-tokens", "100", "--json").stdout)["capacity"]
    assert int(found["requests"]) == capacity.requests
    for arguments, words in (
        (("--memory", "much"), ("--memory", "much")),
        (("--memory", "4MB"), ("--memory", "4MB", "MiB")),
        (("--output-tokens", "5"), ("--output-tokens", "--memory")),
    ):
        wrong = run(*arguments)
        assert wrong.returncode == 2 and all(word in wrong.stderr for word in words), wrong.stderr
