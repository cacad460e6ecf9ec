"""Which rows the cache keeps, and the logits over them, against a plain reference in fp32.

The reference is transformers' model with its own attention function: prefill keeps every layer's queries and keys, SnapKV's
scores are computed from them as the paper says, and decoding attends over whatever rows it is told to keep.
"""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from conftest import run_dump, write_ids
from reference_attention import logits_with

PROMPT = 1050  # four chunks of 256 and a tail
STEPS = 16
WINDOW = 32
KERNEL = 7
SINKS = 4
TEXTS = (0, 2, 4)


class Reference:
    """One prompt in the reference model."""

    def __init__(self, model, prompt):
        self.model = model
        self.layers = model.config.num_hidden_layers
        self.prompt = prompt
        self.queries, self.keys, self.values = {}, {}, {}
        self.logits = self._forward(prompt, 0, self._prefill)[-1]

    def _forward(self, ids, position, attention):
        """Logits [tokens, vocab] with `attention(layer, q, k, v)` in every layer; [heads, tokens, d] each."""
        return logits_with(self.model, attention, ids, position)

    def _prefill(self, layer, q, k, v):
        self.queries[layer], self.keys[layer], self.values[layer] = q[:, -WINDOW:], k, v
        return F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)[0]

    def scores(self, layer):
        """SnapKV (arXiv 2404.14469) in fp32: [kv_heads, prompt - window]."""
        q, k = self.queries[layer], self.keys[layer]
        heads, _, d = q.shape
        kv_heads, tokens, _ = k.shape
        a = q @ k.repeat_interleave(heads // kv_heads, 0).transpose(1, 2) / math.sqrt(d)
        visible = torch.arange(tokens)[None] <= torch.arange(tokens - WINDOW, tokens)[:, None]
        a = a.masked_fill(~visible, -math.inf).softmax(-1)[:, :, : tokens - WINDOW].mean(1)
        a = F.max_pool1d(a[:, None], KERNEL, stride=1, padding=KERNEL // 2)[:, 0]
        return a.view(kv_heads, heads // kv_heads, -1).mean(1)

    def start_decoding(self, kept):
        """kept[layer]: positions [kv_heads, rows]."""
        self.rows = []
        for layer in range(self.layers):
            index = torch.from_numpy(kept[layer]).long()[:, :, None]
            index = index.expand(-1, -1, self.keys[layer].shape[-1])
            self.rows.append([self.keys[layer].gather(1, index), self.values[layer].gather(1, index)])

    def decode(self, token, position, append):
        """Logits after `token`, which attends to the kept rows and, where appended, to itself."""

        def attention(layer, q, k, v):
            if append:
                rows = self.rows[layer]
                rows[0], rows[1] = torch.cat([rows[0], k], 1), torch.cat([rows[1], v], 1)
            keys, values = self.rows[layer]
            group = q.shape[0] // keys.shape[0]
            weights = q @ keys.repeat_interleave(group, 0).transpose(1, 2) / math.sqrt(q.shape[-1])
            return weights.softmax(-1) @ values.repeat_interleave(group, 0)

        return self._forward([token], position, attention)[-1]


@pytest.fixture(scope="module")
def texts(corpus_texts, tokenize):
    ids = [tokenize(corpus_texts[i])[: PROMPT + STEPS] for i in TEXTS]
    assert all(len(i) == PROMPT + STEPS for i in ids)
    return ids


@pytest.fixture(scope="module")
def references(reference_model, texts):
    return [Reference(reference_model, ids[:PROMPT]) for ids in texts]


class Dump:
    """What our prefill and decode steps gave for one text."""

    def __init__(self, folder, model_path, ids, retention, *extra, prompt=PROMPT):
        figures = run_dump(
            "ripplekv-kv-dump",
            f"model={model_path}",
            f"tokens={write_ids(folder / 'tokens.i32', ids[:prompt])}",
            f"forced={write_ids(folder / 'forced.i32', ids[prompt:])}",
            f"out={folder}",
            f"retention={retention}",
            "compute=fp32",
            *extra,
        )
        self.figures = {k: float(v) for k, v in (line.split() for line in figures.splitlines())}
        self.budgets = np.fromfile(folder / "budgets.i64", dtype=np.int64)
        kept = np.fromfile(folder / "kept.i32", dtype=np.int32)
        self.kept, at = [], 0
        kv_heads = len(kept) // int(self.budgets.sum())
        for rows in self.budgets:
            self.kept.append(kept[at : at + kv_heads * rows].reshape(kv_heads, rows))
            at += kv_heads * rows
        assert at == len(kept)
        self.logits = np.fromfile(folder / "logits.f32", dtype=np.float32).reshape(1 + STEPS, -1)


def compare_kept(reference, dump):
    """(rows that differ, rows); every difference must be a near-tie of the reference's scores."""
    differing = total = 0
    for layer, kept in enumerate(dump.kept):
        scores = reference.scores(layer)
        rest = kept.shape[1] - SINKS - WINDOW
        assert rest > 0
        for head, positions in enumerate(kept):
            candidates = scores[head, SINKS:]
            order = candidates.argsort(descending=True, stable=True)
            cut = candidates[order[rest - 1]].item()
            expected = set((order[:rest] + SINKS).tolist())
            expected |= set(range(SINKS)) | set(range(PROMPT - WINDOW, PROMPT))
            assert len(expected) == len(positions)
            assert (np.diff(positions) > 0).all()
            for position in expected ^ set(positions.tolist()):
                score = scores[head, position].item()
                assert abs(score - cut) <= 1e-4 * cut, (
                    f"layer {layer}, KV head {head}, position {position}: score {score}, cut {cut}"
                )
            differing += len(expected - set(positions.tolist()))
            total += len(expected)
    return differing, total


def compare_logits(reference, dump, ids):
    """Largest difference of a logit after the prompt and over the decode steps; the reference's next-token KL."""
    reference.start_decoding(dump.kept)
    q = reference.decode(ids[PROMPT - 1], PROMPT - 1, append=False).double().log_softmax(-1)
    p = reference.logits.double().log_softmax(-1)
    kl = (p.exp() * (p - q)).sum().item()
    worst = np.abs(dump.logits[0] - reference.logits.numpy()).max()
    for step in range(STEPS):
        logits = reference.decode(ids[PROMPT + step], PROMPT + step, append=True).numpy()
        worst = max(worst, np.abs(dump.logits[1 + step] - logits).max())
    return worst, kl


@pytest.mark.parametrize("retention", [0.1, 0.3])
def test_kept_rows_and_logits(tmp_path, model_path, texts, references, retention):
    differing = total = 0
    for ids, reference in zip(texts, references):
        dump = Dump(tmp_path, model_path, ids, retention)
        assert (dump.budgets == math.floor(retention * PROMPT + 1e-9)).all()
        d, t = compare_kept(reference, dump)
        differing, total = differing + d, total + t
        worst, kl = compare_logits(reference, dump, ids)
        print(
            f"retention {retention}: {d} of {t} kept rows differ (near-ties); largest difference of a logit "
            f"{worst:.2e}; next_token_kl {dump.figures['next_token_kl']:.6f}, reference {kl:.6f}"
        )
        assert worst <= 2e-3
        assert dump.figures["next_token_kl"] == pytest.approx(kl, rel=1e-3, abs=1e-6)
        assert kl > 1e-5, "compression must be visible in what this test compares"
    assert differing < 1e-3 * total


def test_layers_of_different_budgets(tmp_path, model_path, texts, references):
    sensitivity = np.random.default_rng(5).uniform(0.001, 0.05, references[0].layers)
    sensitivity.tofile(tmp_path / "sensitivity.f64")
    dump = Dump(tmp_path, model_path, texts[1], 0.15, f"sensitivity={tmp_path / 'sensitivity.f64'}")
    assert dump.budgets.sum() == len(dump.budgets) * math.floor(0.15 * PROMPT)
    assert len(set(dump.budgets.tolist())) > 5
    # More sensitive layers keep more.
    assert (np.diff(dump.budgets[np.argsort(sensitivity)]) >= 0).all()
    differing, total = compare_kept(references[1], dump)
    worst, _ = compare_logits(references[1], dump, texts[1])
    print(f"uneven budgets: {differing} of {total} kept rows differ; largest difference of a logit {worst:.2e}")
    assert differing < 1e-3 * total
    assert worst <= 2e-3


def test_full_cache(tmp_path, model_path, texts, references):
    """Nothing dropped: the reference over all rows, and the floor of next_token_kl."""
    dump = Dump(tmp_path, model_path, texts[0], "full")
    assert (dump.budgets == PROMPT).all()
    assert all((kept == np.arange(PROMPT)).all() for kept in dump.kept)
    worst, _ = compare_logits(references[0], dump, texts[0])
    print(f"full cache: largest difference of a logit {worst:.2e}")
    assert worst <= 2e-3
    assert abs(dump.figures["next_token_kl"]) < 1e-6
