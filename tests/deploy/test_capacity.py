"""docs/operations.md: the worked example of how many requests fit is what a server does."""

import json
import os
import pathlib
import re
import subprocess
import time

import grpc
import pytest

from service import Server, generate, stubs, wait_until

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("RIPPLEKV_BUILD_DIR", SOURCE / "build" / "release"))
MODEL = pathlib.Path(os.environ.get("RIPPLEKV_MODEL", SOURCE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"))
PAGE = (SOURCE / "docs" / "operations.md").read_text(encoding="utf-8")
EXAMPLE = PAGE[PAGE.index("**Example.**") : PAGE.index("**Work memory.**")]
PROMPT, OUTPUT = 7500, 256
ASK = {
    "token_ids": {"ids": [100 + i % 1000 for i in range(PROMPT)]},
    "stopping": {"max_tokens": OUTPUT, "ignore_eos": True},
}


def start(folder, **options):
    # No profile: every layer alike.
    return Server(
        BUILD / "ripplekv-server",
        folder / "log",
        model=MODEL,
        calibration="off",
        profile_dir=folder / "p",
        threads=1,
        **{"kv_type": "int8", **options},
    )


def said(pattern):
    """The whole number that the example gives there."""
    (found,) = re.findall(pattern, EXAMPLE)
    return int(found.replace(",", ""))


def test_the_example_is_of_these_requests():
    assert f"prompts of {PROMPT:,} tokens, {OUTPUT} tokens of output" in EXAMPLE
    assert "`--kv-memory 256MiB`" in EXAMPLE and "retention\n0.2" in EXAMPLE


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with start(tmp_path_factory.mktemp("server"), kv_memory="256MiB", retention=0.2) as server:
        yield server


def idle(server):
    metrics = server.metrics()
    return not metrics["ripplekv_requests_running"] + metrics["ripplekv_requests_waiting"]


def running(server, asked, **more):
    """How many of so many requests run at once; the rest waits."""
    request = stubs().decode.GenerateRequest(**ASK, **more)
    calls = [server.decode.Generate(request) for _ in range(asked)]
    try:

        seen, since = None, 0

        def all_there():
            """And nobody has been let in for a second: that goes one by one, between slices of work."""
            nonlocal seen, since
            metrics = server.metrics()
            both = metrics["ripplekv_requests_running"], metrics["ripplekv_requests_waiting"]
            if both != seen:
                seen, since = both, time.monotonic()
            return both if sum(both) == asked and both[1] and time.monotonic() - since > 1 else None

        return wait_until(all_there, what="some that run and some that wait")[0]
    finally:
        for call in calls:
            call.cancel()
        wait_until(lambda: idle(server))


def test_pages(server):
    assert server.metrics()["ripplekv_kv_free_pages"] == said(r"/ 13,440 = ([\d,]+)")
    assert server.model().kv_bytes_per_position_layer * 32 == said(r"page          = .* = ([\d,]+) bytes")


def test_pages_for_plans_that_choose_types(tmp_path):
    with start(tmp_path, kv_memory="256MiB", kv_type="auto") as server:
        assert server.metrics()["ripplekv_kv_free_pages"] == said(r"there are ([\d,]+) larger pages")


def test_requests_that_fit(server):
    assert running(server, 13) == said(r"requests      = floor\(19504 / 1650\)\s+= (\d+)")
    assert running(server, 15, kv={"growth_cap": 64}) == said(r"and (\d+) fit\. A full")
    assert running(server, 4, kv={"size": {"full": {}}}) == said(r"7,290 pages, and (\d+) fit\.")


def test_the_command_says_the_same(server):
    words = ["--server", server.address, "plan", "--memory", "256MiB", "--prompt-tokens", str(PROMPT)]
    done = subprocess.run([BUILD / "ripplekv", *words, "--json"], capture_output=True, text=True, check=True)
    capacity = json.loads(done.stdout)["capacity"]
    assert int(capacity["requests"]) == said(r"requests      = floor\(19504 / 1650\)\s+= (\d+)")
    assert int(capacity["pages"]) == said(r"/ 13,440 = ([\d,]+)")
    assert int(capacity["request_pages"]) == said(r"request pages = .* = ([\d,]+) \(")
    assert int(capacity["prefill_layer_bytes"]) == said(r"prefill layer = .* = ([\d,]+) bytes")
    assert int(capacity["output_tokens"]) == OUTPUT


def test_pages_of_a_request(tmp_path):
    with start(tmp_path, kv_memory="16MiB") as small:
        with pytest.raises(grpc.RpcError) as refused:
            generate(small, **ASK)
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    pages, size = said(r"request pages = .* = ([\d,]+) \("), said(r"\(([\d,]+) bytes\)")
    assert f"needs {pages} KV pages ({size} bytes)" in refused.value.details()
