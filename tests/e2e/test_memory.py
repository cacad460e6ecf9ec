"""Memory of a prefill: by the arena's own count, and of the process as seen from outside."""

import math

import pytest

from service import generate

RETENTION = 0.1
ROWS_PER_PAGE = 32  # server/engine
MIB = 1 << 20

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def server(start_server, model_path):
    return start_server(
        model=model_path, calibration="off", retention=RETENTION, min_positions=0, kv_memory="256MiB", threads=2
    )


@pytest.fixture(scope="module")
def ids(corpus_texts, tokenize):
    ids = [i for text in corpus_texts[:8] for i in tokenize(text)]
    assert len(ids) >= 7900
    return ids


def prefill(server, ids):
    return generate(server, token_ids={"ids": ids}, stopping={"max_tokens": 1}, timeout=300)[3]


def test_the_arena_holds_the_plan_and_one_full_layer(server, ids):
    tokens = 4000
    model = server.model()
    m = model.model
    cache = prefill(server, ids[:tokens]).cache
    kept = [layer.positions_kept for layer in cache.layers]
    assert kept == [math.floor(RETENTION * tokens)] * m.layers  # uniform
    # The plan in whole pages, whose regions start at multiples of 64 bytes.
    row_bytes = model.kv_bytes_per_position_layer
    page_bytes = math.ceil(ROWS_PER_PAGE * row_bytes / 64) * 64
    plan = sum(math.ceil(rows / ROWS_PER_PAGE) for rows in kept) * page_bytes
    assert sum(layer.kv_bytes for layer in cache.layers) == plan
    full_layer = tokens * 2 * m.kv_heads * m.head_dim * 2  # keys and values in bf16
    # While the last layer is at work all others are compacted; that one's pages join before its rows are let go.
    print(
        f"peak {cache.peak_prefill_bytes} bytes = plan {plan} + full layer {full_layer} + "
        f"{cache.peak_prefill_bytes - plan - full_layer}; full cache {cache.full_kv_bytes}"
    )
    assert plan < cache.peak_prefill_bytes <= plan + full_layer
    assert cache.peak_prefill_bytes > plan - max(layer.kv_bytes for layer in cache.layers) + full_layer
    assert server.metrics()["ripplekv_kv_used_bytes"] == 0


def rows_per_page(page_bytes, heads, *regions):
    """How many rows of these regions (bytes a row and head), each from a multiple of 64 on, and of a position fit: a
    multiple of 32 where that leaves out less than a fifth."""

    def taken(rows):
        return sum(math.ceil(heads * rows * size / 64) * 64 for size in regions) + heads * rows * 4

    fit = max(rows for rows in range(1, 1000) if taken(rows) <= page_bytes)
    return fit // 32 * 32 if fit % 32 * 5 < fit else fit


def test_pages_hold_as_many_rows_as_the_type_allows(server, ids):
    tokens = 4000
    model = server.model()
    m = model.model
    page_bytes = math.ceil(ROWS_PER_PAGE * model.kv_bytes_per_position_layer / 64) * 64
    d = m.head_dim
    bf16, int8, int4 = (2 * d,), (d, 4), (d // 2, 4 * d // 32)  # rows, then scales and minima
    full_layer = tokens * 2 * m.kv_heads * d * 2  # always in bf16, that of the arithmetic
    for (key, keys), (value, values) in (((3, int8), (3, int8)), ((4, int4), (2, bf16)), ((4, int4), (4, int4))):
        kv = {"key_type": key, "value_type": value}
        cache = generate(server, token_ids={"ids": ids[:tokens]}, kv=kv, stopping={"max_tokens": 1}, timeout=300)[3].cache
        fit = rows_per_page(page_bytes, m.kv_heads, *keys, *values)
        assert fit > ROWS_PER_PAGE
        kept = math.floor(RETENTION * tokens)
        assert [layer.kv_bytes for layer in cache.layers] == [math.ceil(kept / fit) * page_bytes] * m.layers
        assert cache.kv_bytes == m.layers * kept * m.kv_heads * (sum(keys) + sum(values) + 4)
        plan = sum(layer.kv_bytes for layer in cache.layers)
        assert plan < cache.peak_prefill_bytes <= plan + full_layer
    assert server.metrics()["ripplekv_kv_used_bytes"] == 0


def test_the_process_grows_by_what_the_design_explains(server, ids):
    short, long = 2000, 7900
    m = server.model().model
    prefill(server, ids[:short])  # what is set up once

    def peak(tokens):
        server.reset_peak_memory()
        assert server.memory_bytes("VmHWM") - server.memory_bytes("VmRSS") < MIB, "an earlier peak would hide this one"
        cache = prefill(server, ids[:tokens]).cache
        return cache, server.memory_bytes("VmHWM")

    small, low = peak(short)
    large, high = peak(long)
    more = long - short
    explained = {
        "kept rows": sum(x.kv_bytes for x in large.layers) - sum(x.kv_bytes for x in small.layers),
        "one full layer": more * 2 * m.kv_heads * m.head_dim * 2,
        "residuals in fp32": more * m.hidden_size * 4,
        "window scores in fp32": more * (m.heads + m.kv_heads) * 4,
    }
    allowance = 4 * MIB  # ids, selected indices, the message, the allocator's own rounding
    grown = high - low
    parts = ", ".join(f"{name} {size / MIB:.1f}" for name, size in explained.items())
    print(f"peak resident memory grows by {grown / MIB:.1f} MiB; explained {sum(explained.values()) / MIB:.1f}: {parts}")
    assert grown <= sum(explained.values()) + allowance
    # The residuals alone are in it, and a full cache is not: both bounds mean something.
    assert grown > explained["residuals in fp32"] / 2
    assert sum(explained.values()) + allowance < large.full_kv_bytes - small.full_kv_bytes
