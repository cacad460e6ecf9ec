"""Means of paired measurements with percentile intervals from a bootstrap over documents; one seed, so one result."""

import numpy as np

SEED, RESAMPLES = 20260808, 10_000
# Share of the resamples that may have no value: more of them would be missing from the interval's ends.
MOST_LEFT_OUT = 0.01


def interval(statistic, *samples, level=0.95, seed=SEED, resamples=RESAMPLES):
    """statistic of samples [..., documents] along the last axis: its value and the bounds. Samples are resampled together:
    they are of the same documents. Resamples of which the statistic is NaN are left out, and `left_out` says how many; where
    they are too many there are no bounds."""
    arrays = [np.asarray(sample, dtype=np.float64) for sample in samples]
    counts = [a.shape[-1] for a in arrays]
    count = counts[0]
    if count == 0 or len(set(counts)) > 1:
        raise ValueError(f"paired samples of {', '.join(map(str, counts))} documents")
    value = float(statistic(*arrays))
    if count == 1:
        return {"value": value, "documents": 1}
    chosen = np.random.default_rng(seed).integers(0, count, (resamples, count))
    drawn = np.asarray(statistic(*(a[..., chosen] for a in arrays)))
    found = {"value": value, "documents": count}
    there = drawn[~np.isnan(drawn)]
    if len(there) < resamples:
        found["left_out"] = resamples - len(there)
    if resamples - len(there) <= MOST_LEFT_OUT * resamples:
        low, high = np.quantile(there, [(1 - level) / 2, (1 + level) / 2])
        found |= {"low": float(low), "high": float(high)}
    return found


def mean(sample, **options):
    return interval(lambda a: a.mean(-1), sample, **options)


def difference(sample, baseline, **options):
    return interval(lambda a, b: a.mean(-1) - b.mean(-1), sample, baseline, **options)


def ratio(sample, baseline, **options):
    """Of the means. None where the baseline's mean is 0; resamples where it is have no ratio."""
    if not np.any(baseline):
        return None

    def statistic(a, b):
        over, under = a.mean(-1), b.mean(-1)
        return np.divide(over, under, out=np.full(np.shape(under), np.nan), where=under != 0)

    return interval(statistic, sample, baseline, **options)


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
