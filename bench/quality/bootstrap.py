"""Means of paired measurements with percentile intervals from a bootstrap over documents; one seed, so one result."""

import numpy as np

SEED, RESAMPLES = 20260808, 10_000


def interval(statistic, *samples, level=0.95, seed=SEED, resamples=RESAMPLES):
    """statistic of samples [..., documents] along the last axis: its value and the bounds. Samples are resampled together:
    they are of the same documents."""
    arrays = [np.asarray(sample, dtype=np.float64) for sample in samples]
    counts = [a.shape[-1] for a in arrays]
    count = counts[0]
    if count == 0 or len(set(counts)) > 1:
        raise ValueError(f"paired samples of {', '.join(map(str, counts))} documents")
    value = float(statistic(*arrays))
    if count == 1:
        return {"value": value, "documents": 1}
    chosen = np.random.default_rng(seed).integers(0, count, (resamples, count))
    drawn = statistic(*(a[..., chosen] for a in arrays))
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return {"value": value, "low": float(low), "high": float(high), "documents": count}


def mean(sample, **options):
    return interval(lambda a: a.mean(-1), sample, **options)


def difference(sample, baseline, **options):
    return interval(lambda a, b: a.mean(-1) - b.mean(-1), sample, baseline, **options)


def ratio(sample, baseline, **options):
    """Of the means. None where the baseline's mean is 0."""
    if not np.any(baseline):
        return None
    return interval(lambda a, b: a.mean(-1) / np.maximum(b.mean(-1), 1e-300), sample, baseline, **options)


def ranks(values):
    """1 to n, ties their mean."""
    values = np.asarray(values, dtype=np.float64)
    below = (values[..., None, :] < values[..., :, None]).sum(-1)
    equal = (values[..., None, :] == values[..., :, None]).sum(-1)
    return below + (equal + 1) / 2


def spearman(a, b):
    """Rank correlation; 0 where one of them is constant."""
    a, b = (ranks(x) - (np.asarray(x).shape[-1] + 1) / 2 for x in (a, b))
    scale = np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    return np.where(scale > 0, (a * b).sum(-1) / np.where(scale > 0, scale, 1), 0.0)
