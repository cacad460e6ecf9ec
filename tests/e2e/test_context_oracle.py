"""Answers over a context against a plain reference in fp32, over the rows that the context itself keeps.

The reference is transformers' model with its own attention function: the question's tokens attend to the dumped rows and
causally to each other, at the positions that follow the context; decoding goes on from there.
"""

import math

import numpy as np
import pytest
import torch

from conftest import run_dump, write_ids
from reference_attention import logits_with

CONTEXT = 900
RETENTION = 0.3
STEPS = 24
# One token; a short question; more than a chunk of 256, so that chunks attend to rows and chunks before them.
QUESTIONS = (1, 20, 300)


class RowsReference:
    """The model over given rows: keys[layer], values[layer] [kv_heads, rows, d]."""

    def __init__(self, model, keys, values):
        self.model = model
        self.rows = [[k, v] for k, v in zip(keys, values)]

    def feed(self, ids, position):
        """Logits [tokens, vocab] of ids at position and on; their rows are appended."""
        return logits_with(self.model, self._attention, ids, position)

    def _attention(self, layer, q, k, v):
        rows = self.rows[layer]
        base, new = rows[0].shape[1], k.shape[1]
        rows[0], rows[1] = torch.cat([rows[0], k], 1), torch.cat([rows[1], v], 1)
        group = q.shape[0] // k.shape[0]
        weights = q @ rows[0].repeat_interleave(group, 0).transpose(1, 2) / math.sqrt(q.shape[-1])
        hidden = torch.arange(base + new)[None] > base + torch.arange(new)[:, None]
        weights = weights.masked_fill(hidden, -math.inf).softmax(-1)
        return weights @ rows[1].repeat_interleave(group, 0)


def split(flat, budgets, *shape):
    """The dump's layers: [kv_heads, b_l, ...] each."""
    per_row = len(flat) // int(budgets.sum())
    at = np.concatenate([[0], np.cumsum(budgets)]) * per_row
    return [flat[a:b].reshape(shape[0], rows, *shape[1:]) for a, b, rows in zip(at, at[1:], budgets)]


class Dump:
    def __init__(self, folder, model_path, config, context, question):
        run_dump(
            "ripplekv-kv-dump",
            f"model={model_path}",
            f"tokens={write_ids(folder / 'tokens.i32', context)}",
            f"question={write_ids(folder / 'question.i32', question)}",
            f"out={folder}",
            f"retention={RETENTION}",
            f"steps={STEPS}",
            "compute=fp32",
        )
        heads, d = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
        self.budgets = np.fromfile(folder / "budgets.i64", dtype=np.int64)
        self.kept = split(np.fromfile(folder / "kept.i32", dtype=np.int32), self.budgets, heads)
        keys = split(np.fromfile(folder / "keys.f32", dtype=np.float32), self.budgets, heads, d)
        # The file's layout rotates neighbours (2 i, 2 i + 1), transformers (i, i + d / 2).
        self.keys = [np.concatenate([k[..., 0::2], k[..., 1::2]], -1) for k in keys]
        self.values = split(np.fromfile(folder / "values.f32", dtype=np.float32), self.budgets, heads, d)
        self.fed = np.fromfile(folder / "fed.i32", dtype=np.int32).tolist()
        self.logits = np.fromfile(folder / "logits.f32", dtype=np.float32).reshape(1 + STEPS, -1)


@pytest.fixture(scope="module")
def document(corpus_texts, tokenize):
    ids = tokenize(corpus_texts[2])
    assert len(ids) > CONTEXT + max(QUESTIONS)
    return ids


@pytest.fixture(scope="module")
def exact_rows(reference_model, document):
    """Keys (rotated) and values of every position of the context, by transformers."""
    with torch.inference_mode():
        cache = reference_model(torch.tensor([document[:CONTEXT]]), use_cache=True).past_key_values
    return [(layer.keys[0].numpy(), layer.values[0].numpy()) for layer in cache.layers]


@pytest.mark.parametrize("question_tokens", QUESTIONS)
def test_answers_over_the_dumped_rows(tmp_path, model_path, reference_model, document, exact_rows, question_tokens):
    question = document[CONTEXT : CONTEXT + question_tokens]
    dump = Dump(tmp_path, model_path, reference_model.config, document[:CONTEXT], question)
    assert (dump.budgets == math.floor(RETENTION * CONTEXT)).all()

    # The rows are those of the positions they name, also after questions ran over them.
    worst_row = 0.0
    for kept, keys, values, exact in zip(dump.kept, dump.keys, dump.values, exact_rows, strict=True):
        assert (np.diff(kept) > 0).all()
        for ours, theirs in zip((keys, values), exact):
            theirs = np.take_along_axis(theirs, kept[:, :, None].astype(np.int64), 1)
            worst_row = max(worst_row, (np.abs(ours - theirs) / (1 + np.abs(theirs))).max())
    assert worst_row <= 1e-3

    reference = RowsReference(
        reference_model, *([torch.from_numpy(rows) for rows in side] for side in (dump.keys, dump.values))
    )
    logits = reference.feed(question, CONTEXT)[-1].numpy()
    worst = np.abs(dump.logits[0] - logits).max()
    tokens = [int(logits.argmax())]
    for step, token in enumerate(dump.fed):
        assert token == tokens[-1], f"token {step}"
        logits = reference.feed([token], CONTEXT + question_tokens + step)[-1].numpy()
        worst = max(worst, np.abs(dump.logits[1 + step] - logits).max())
        tokens.append(int(logits.argmax()))
    print(
        f"question of {question_tokens}: largest difference of a logit {worst:.2e}, of a kept row {worst_row:.1e}"
    )
    assert worst <= 2e-3

    # Compression is visible: the same question over every row has other logits.
    with torch.inference_mode():
        whole = reference_model(torch.tensor([document[: CONTEXT + question_tokens]])).logits[0, -1].numpy()
    assert np.abs(dump.logits[0] - whole).max() > 0.05
