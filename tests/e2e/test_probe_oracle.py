"""The probe's divergences against a plain implementation: whole-model passes by transformers in fp32 on the same
dequantised weights, a cache whose values are edited in place, the same noise from a Philox written here.

RIPPLEKV_FULL_PROBE=1 compares at the default lengths (prefix 1024, window 64) as well.
"""

import copy
import os

import numpy as np
import pytest
import torch

from conftest import run_dump, write_ids

EXAMPLES = 3


def philox4x32_10(counter, key):
    """counter [..., 4], key [2] of uint32 -> [..., 4] (Salmon et al., SC 2011)."""
    c = [counter[..., i].astype(np.uint64) for i in range(4)]
    k0, k1 = int(key[0]), int(key[1])
    mask = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0 = c[0] * np.uint64(0xD2511F53)
        p1 = c[2] * np.uint64(0xCD9E8D57)
        c = [
            (p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k0),
            p1 & mask,
            (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k1),
            p0 & mask,
        ]
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, axis=-1)


def noise(seed, example, layer, kv_heads, positions, head_dim):
    """Standard normals [kv_heads, positions, head_dim], fp32."""
    counter = np.zeros((kv_heads, positions, head_dim // 4, 4), dtype=np.uint32)
    counter[..., 0] = (
        np.arange(head_dim // 4)[None, None, :] + (np.arange(kv_heads) << 16)[:, None, None]
    )
    counter[..., 1] = np.arange(positions)[None, :, None]
    counter[..., 2] = layer
    counter[..., 3] = example
    words = philox4x32_10(counter, (seed & 0xFFFFFFFF, seed >> 32))
    u = (words.astype(np.float64) + 1) / 2.0**32
    radius = np.sqrt(-2 * np.log(u[..., 0::2]))
    angle = 2 * np.pi * u[..., 1::2]
    normals = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    return normals.reshape(kv_heads, positions, head_dim).astype(np.float32)


def test_philox_known_answers():
    """The published vectors of Random123 for philox4x32-10."""
    vectors = [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ]
    for counter, key, expected in vectors:
        assert philox4x32_10(np.array(counter, dtype=np.uint32), key).tolist() == expected


def window_log_probs(model, cache, window):
    logits = model(torch.tensor([window]), past_key_values=cache).logits[0]
    return torch.log_softmax(logits.double(), dim=-1)


@torch.inference_mode()
def reference_divergences(model, examples, prefix, eta, sinks, recent, seed):
    """[examples, layers]"""
    result = []
    for e, ids in enumerate(examples):
        clean_cache = model(torch.tensor([ids[:prefix]]), use_cache=True).past_key_values
        p = window_log_probs(model, copy.deepcopy(clean_cache), ids[prefix:])
        row = []
        for layer in range(model.config.num_hidden_layers):
            cache = copy.deepcopy(clean_cache)
            values = cache.layers[layer].values  # [1, kv_heads, prefix, head_dim]
            _, kv_heads, positions, head_dim = values.shape
            assert positions == prefix
            eps = torch.from_numpy(noise(seed, e, layer, kv_heads, prefix, head_dim)).double()
            v = values[0].double()
            alpha = eta / head_dim**0.5
            perturbed = v + alpha * v.norm(dim=-1, keepdim=True) * eps
            free = slice(sinks, prefix - recent)
            values[0, :, free] = perturbed[:, free].float()
            q = window_log_probs(model, cache, ids[prefix:])
            row.append((p.exp() * (p - q)).sum(-1).mean().item())
        result.append(row)
    return np.array(result)


def dump(tmp_path, model_path, examples, compute="fp32", threads=1, **settings):
    """Divergences [examples, layers] and the profile's bytes."""
    out, profile = tmp_path / "divergences.f64", tmp_path / "profile.json"
    run_dump(
        "ripplekv-probe-dump",
        model_path,
        compute,
        threads,
        write_ids(tmp_path / "tokens.i32", np.concatenate(examples)),
        out,
        profile,
        *[f"{name}={value}" for name, value in settings.items()],
    )
    return np.fromfile(out).reshape(len(examples), -1), profile.read_bytes()


def examples_of(corpus_texts, tokenize, length):
    """A prose, a code and a table document."""
    examples = [tokenize(corpus_texts[i])[:length] for i in (0, 1, 3)]
    assert all(len(ids) == length for ids in examples)
    return examples


def compare(tmp_path, model_path, reference_model, corpus_texts, tokenize, **settings):
    prefix, window = settings["prefix"], settings["window"]
    examples = examples_of(corpus_texts, tokenize, prefix + window)
    ours, _ = dump(tmp_path, model_path, examples, **settings)
    theirs = reference_divergences(
        reference_model,
        examples,
        prefix,
        settings["eta"],
        settings["sinks"],
        settings["recent"],
        settings["seed"],
    )
    assert ours.shape == theirs.shape
    s_ours, s_theirs = ours.mean(axis=0), theirs.mean(axis=0)
    assert (s_theirs > 0).all()
    of_layers = np.abs(s_ours / s_theirs - 1)
    of_examples = np.abs(ours / theirs - 1)
    print(
        f"prefix {prefix} window {window}: s_l {s_theirs.min():.3e} ... {s_theirs.max():.3e}; largest relative "
        f"difference of s_l {of_layers.max():.2e}, of one example's {of_examples.max():.2e}"
    )
    assert of_layers.max() <= 0.01


def test_sensitivities(tmp_path, model_path, reference_model, corpus_texts, tokenize):
    compare(
        tmp_path,
        model_path,
        reference_model,
        corpus_texts,
        tokenize,
        prefix=256,
        window=32,
        eta=0.5,
        sinks=4,
        recent=32,
        seed=0,
    )


@pytest.mark.skipif(
    os.environ.get("RIPPLEKV_FULL_PROBE") != "1", reason="RIPPLEKV_FULL_PROBE=1 runs it"
)
def test_sensitivities_at_default_lengths(
    tmp_path, model_path, reference_model, corpus_texts, tokenize
):
    compare(
        tmp_path,
        model_path,
        reference_model,
        corpus_texts,
        tokenize,
        prefix=1024,
        window=64,
        eta=0.5,
        sinks=4,
        recent=32,
        seed=0,
    )


def test_protected_positions_and_seed(
    tmp_path, model_path, reference_model, corpus_texts, tokenize
):
    """Few free positions, a chunk that ends early, a seed of more than 32 bits."""
    compare(
        tmp_path,
        model_path,
        reference_model,
        corpus_texts,
        tokenize,
        prefix=75,
        window=5,
        eta=0.8,
        sinks=20,
        recent=40,
        seed=0x123456789ABCDEF,
    )


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_no_noise_is_exactly_zero(tmp_path, model_path, corpus_texts, tokenize, compute):
    examples = examples_of(corpus_texts, tokenize, 96 + 24)[:2]
    ours, _ = dump(tmp_path, model_path, examples, compute, prefix=96, window=24, eta=0)
    assert ours.shape[1] == 30
    assert (ours == 0).all()


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_bytes_do_not_depend_on_threads_or_batching(
    tmp_path, model_path, corpus_texts, tokenize, compute
):
    examples = examples_of(corpus_texts, tokenize, 140 + 8)
    shape = {"prefix": 140, "window": 8}
    ours, profile = dump(
        tmp_path, model_path, examples, compute, threads=1, **shape, group=1, variants=1
    )
    assert (ours > 0).all()
    assert ours.std() > 0
    again, profile_again = dump(
        tmp_path, model_path, examples, compute, threads=2, **shape, group=2, variants=7
    )
    assert np.array_equal(ours, again)
    assert profile_again == profile
    _, other_seed = dump(tmp_path, model_path, examples, compute, **shape, seed=1)
    assert other_seed != profile
