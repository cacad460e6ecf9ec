"""Which rows every selector keeps on a real model, against kvpress' presses where it has one and the formula elsewhere.

transformers computes queries and keys in fp32 with its own attention; scores come from whole attention matrices. Ours sums
the sampled queries only, in the engine, while the prompt passes.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from kvpress import ObservedAttentionPress, SnapKVPress, StreamingLLMPress

from reference_attention import logits_with
from test_snapkv_oracle import KERNEL, SINKS, STEPS, WINDOW, Dump

PROMPT = 500  # fewer than the most queries that may vote: kvpress has all of them vote
QUERIES = 256
RETENTION = 0.15
SCORED = PROMPT - WINDOW


def normalised(attention, first):
    """[heads, scored]: the sum over the queries from `first` on, by how many of them see the key."""
    seen = torch.arange(PROMPT)[None] <= torch.arange(first, PROMPT)[:, None]
    return (attention[:, first:].sum(1) / seen.sum(0))[:, :SCORED]


def mean_of_group(scores, kv_heads):
    return scores.view(kv_heads, -1, scores.shape[-1]).mean(1)


def scores_of(q, k):
    """Name -> [kv_heads, scored] of one layer; q [heads, tokens, d], k [kv_heads, tokens, d]."""
    heads, kv_heads, d = len(q), len(k), q.shape[-1]
    logits = q @ k.repeat_interleave(heads // kv_heads, 0).transpose(1, 2) / math.sqrt(d)
    visible = torch.ones(PROMPT, PROMPT, dtype=torch.bool).tril()
    attention = logits.masked_fill(~visible, -math.inf).softmax(-1)

    module = SimpleNamespace(config=SimpleNamespace(num_attention_heads=heads), head_dim=d)
    hidden = torch.empty(1, PROMPT, 1)

    def press(press):
        """Scores [kv_heads, scored] that kvpress itself computes."""
        return press.score(module, hidden, k[None], None, attention[None], {})[0, :, :SCORED]

    window = mean_of_group(
        F.max_pool1d(attention[:, -WINDOW:, :SCORED].mean(1)[:, None], KERNEL, stride=1, padding=KERNEL // 2)[:, 0],
        kv_heads,
    )
    recent = mean_of_group(normalised(attention, PROMPT - QUERIES), kv_heads)
    strided = [(i + 1) * PROMPT // QUERIES - 1 for i in range(QUERIES)]
    sampled = attention[:, strided]
    counts = torch.tensor([sum(t >= u for t in strided) for u in range(PROMPT)])
    shares = [s / s[:, SINKS:].sum(1, keepdim=True) for s in (window, recent)]
    pooled = F.avg_pool1d(normalised(attention, PROMPT - 100), 5, stride=1, padding=2)
    return {
        "snapkv pooling=mean": press(SnapKVPress(window_size=WINDOW, kernel_size=KERNEL)),
        "snapkv": window,
        "h2o queries=512 normalised=1": press(ObservedAttentionPress()),
        "h2o queries=512": mean_of_group(attention.sum(1), kv_heads)[:, :SCORED],
        f"h2o queries={QUERIES} normalised=1": mean_of_group(sampled.sum(1) / counts, kv_heads)[:, :SCORED],
        f"h2o queries={QUERIES}": mean_of_group(sampled.sum(1), kv_heads)[:, :SCORED],
        f"recent_attention queries={QUERIES}": recent,
        "recent_attention queries=100 pooling=mean kernel=5": mean_of_group(pooled, kv_heads),
        f"mixed queries={QUERIES} weight=0.25": 0.25 * shares[0] + 0.75 * shares[1],
    }


NAMES = (
    "snapkv pooling=mean",
    "snapkv",
    "h2o queries=512 normalised=1",
    "h2o queries=512",
    f"h2o queries={QUERIES} normalised=1",
    f"h2o queries={QUERIES}",
    f"recent_attention queries={QUERIES}",
    "recent_attention queries=100 pooling=mean kernel=5",
    f"mixed queries={QUERIES} weight=0.25",
)


@pytest.fixture(scope="module")
def prompt(corpus_texts, tokenize):
    ids = tokenize(corpus_texts[0])[: PROMPT + STEPS]
    assert len(ids) == PROMPT + STEPS
    return ids


@pytest.fixture(scope="module")
def reference(reference_model, prompt):
    """[layers] of scores_of."""
    layers = {}

    def attention(layer, q, k, v):
        layers[layer] = scores_of(q, k)
        return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)[0]

    logits_with(reference_model, attention, prompt[:PROMPT], 0)
    return [layers[layer] for layer in range(reference_model.config.num_hidden_layers)]


def dump(tmp_path, model_path, prompt, name):
    selector, *parameters = name.split()
    return Dump(tmp_path, model_path, prompt, RETENTION, f"selector={selector}", *parameters, prompt=PROMPT)


@pytest.mark.parametrize("name", NAMES)
def test_the_best_scored_are_kept(tmp_path, model_path, prompt, reference, name):
    kept = dump(tmp_path, model_path, prompt, name).kept
    differing = total = 0
    chosen = set()
    for layer, rows in enumerate(kept):
        scores = reference[layer][name]
        assert rows.shape[1] == math.floor(RETENTION * PROMPT)
        rest = rows.shape[1] - SINKS - WINDOW
        for head, positions in enumerate(rows):
            order = scores[head, SINKS:].argsort(descending=True, stable=True) + SINKS
            cut = scores[head, order[rest - 1]].item()
            expected = set(order[:rest].tolist()) | set(range(SINKS)) | set(range(SCORED, PROMPT))
            for position in expected ^ set(positions.tolist()):
                score = scores[head, position].item()
                assert abs(score - cut) <= 2e-4 * cut, (
                    f"layer {layer}, KV head {head}, position {position}: score {score}, cut {cut}"
                )
            differing += len(expected - set(positions.tolist()))
            total += len(expected)
            chosen |= {(layer, head, int(p)) for p in positions}
    print(f"{name}: {differing} of {total} kept rows differ (near-ties)")
    assert differing < 1e-3 * total
    # It is none of the others: they would keep other rows.
    for other in NAMES:
        if other == name:
            continue
        same = 0
        for layer, rows in enumerate(kept):
            for head, positions in enumerate(rows):
                order = reference[layer][other][head, SINKS:].argsort(descending=True, stable=True) + SINKS
                best = order[: len(positions) - SINKS - WINDOW].tolist()
                same += sum((layer, head, p) in chosen for p in best)
        assert same < 0.995 * (total - len(kept) * len(kept[0]) * (SINKS + WINDOW)), other


def test_streaming_keeps_what_kvpress_does(tmp_path, model_path, prompt):
    kept = dump(tmp_path, model_path, prompt, "streaming_llm").kept
    keys = torch.empty(1, len(kept[0]), PROMPT, 1)
    press = StreamingLLMPress(compression_ratio=1 - (kept[0].shape[1] + 0.5) / PROMPT, n_sink=SINKS)
    scores = press.score(None, None, keys, None, None, {})[0]
    for rows in kept:
        for head, positions in enumerate(rows):
            assert positions.tolist() == scores[head].nonzero()[:, 0].tolist()


def test_random_is_even_and_of_its_seed(tmp_path, model_path, prompt):
    first, again, other = (dump(tmp_path, model_path, prompt, f"random seed={seed}").kept for seed in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert any((a != b).any() for a, b in zip(first, other, strict=True))
    drawn = np.concatenate([rows[:, SINKS:-WINDOW].ravel() for rows in first])
    assert drawn.min() >= SINKS and drawn.max() < SCORED
    # Each tenth of the prompt holds a tenth of them, within five standard deviations.
    counts = np.histogram(drawn, bins=10, range=(SINKS, SCORED))[0]
    assert np.abs(counts - len(drawn) / 10).max() < 5 * math.sqrt(len(drawn) / 10)
