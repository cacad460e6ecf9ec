"""The decoder's logits against transformers on the same dequantised weights."""

import numpy as np
import pytest
import torch

from conftest import run_dump, write_ids

POSITIONS = 512


@pytest.fixture(scope="module")
def texts(corpus_texts, tokenize):
    """Three texts of different kinds, 512 positions each."""
    return [tokenize(corpus_texts[i])[:POSITIONS] for i in (0, 2, 4)]


@pytest.fixture(scope="module")
def references(texts, reference_model):
    with torch.inference_mode():
        return [reference_model(torch.tensor([ids])).logits[0].numpy() for ids in texts]


def dump(tmp_path, model_path, ids, compute, path, threads):
    out = tmp_path / "logits.f32"
    run_dump(
        "ripplekv-logits-dump",
        model_path,
        compute,
        path,
        threads,
        write_ids(tmp_path / "tokens.i32", ids),
        out,
    )
    return np.fromfile(out, dtype=np.float32).reshape(len(ids), -1)


def mean_kl(reference, logits):
    p = torch.log_softmax(torch.from_numpy(reference).double(), dim=-1)
    q = torch.log_softmax(torch.from_numpy(logits).double(), dim=-1)
    return (p.exp() * (p - q)).sum(-1).mean().item()


def test_fp32_logits(tmp_path, model_path, texts, references):
    for ids, reference in zip(texts, references):
        ours = dump(tmp_path, model_path, ids, "fp32", "chunk", 2)
        assert ours.shape == reference.shape
        worst = np.abs(ours - reference).max()
        print(f"largest difference of a logit, fp32 chunks: {worst:.2e}")
        assert worst <= 2e-3


def test_fp32_rows_path(tmp_path, model_path, texts, references):
    ids = texts[0][:96]
    ours = dump(tmp_path, model_path, ids, "fp32", "rows", 2)
    worst = np.abs(ours - references[0][: len(ids)]).max()
    print(f"largest difference of a logit, fp32 rows: {worst:.2e}")
    assert worst <= 2e-3


def test_bf16_kl(tmp_path, model_path, texts, references, reference_model):
    import copy

    theirs = copy.deepcopy(reference_model).to(torch.bfloat16)
    ours_kl, theirs_kl = [], []
    for ids, reference in zip(texts, references):
        with torch.inference_mode():
            bf16 = theirs(torch.tensor([ids])).logits[0].float().numpy()
        theirs_kl.append(mean_kl(reference, bf16))
        ours_kl.append(mean_kl(reference, dump(tmp_path, model_path, ids, "bf16", "chunk", 2)))
    ratio = np.mean(ours_kl) / np.mean(theirs_kl)
    print(f"mean KL to fp32, bf16: ours {np.mean(ours_kl):.2e}, transformers {np.mean(theirs_kl):.2e}, ratio {ratio:.2f}")
    assert ratio <= 1.2


@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_threads_do_not_change_bits(tmp_path, model_path, texts, compute):
    ids = texts[1][:300]  # one full chunk and a padded tail
    one = dump(tmp_path, model_path, ids, compute, "chunk", 1)
    two = dump(tmp_path, model_path, ids, compute, "chunk", 2)
    assert np.array_equal(one, two)
