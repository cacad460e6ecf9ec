"""What compressing one layer alone costs, every other one whole, and how well the profile foretells it."""

import functools
import math

import numpy as np

from . import bootstrap, fidelity_task, methods


def jobs(options, client, tokens, layers):
    """(key, measure) of every document and layer."""
    for document, ids in fidelity_task.picked(options, tokens, options.length + options.tokens):
        prompt, rest = ids[: options.length], ids[options.length : options.length + options.tokens]
        for layer in range(layers):
            positions = [options.length] * layers
            positions[layer] = math.floor(options.fraction * options.length)
            kv = {"allocator": {"positions": {"positions": positions}}, "selector": methods.SNAPKV}
            measure = functools.partial(fidelity_task.measure, client, document.name, prompt, rest, lambda _, kv=kv: kv)
            yield (options.length, options.fraction, document.digest, layer), measure


def matrix(results):
    """Mean KL [layers, documents]."""
    layers = sorted({layer for _, _, _, layer in results})
    documents = sorted({document for _, _, document, _ in results})
    found = {(layer, document): result["mean_kl"] for (_, _, document, layer), result in results.items()}
    return np.array([[found[layer, document] for document in documents] for layer in layers])


def correlation(signal, damage):
    """Spearman's rank correlation of a number a layer with the damage of the layers, resampled over documents."""

    def statistic(sample):  # [layers, ..., documents]
        means = np.moveaxis(sample.mean(-1), 0, -1)
        return bootstrap.spearman(np.broadcast_to(signal, means.shape), means)

    return bootstrap.interval(statistic, damage, resamples=2000)


def summary(results, profile):
    """A line a layer, and the rank correlations of the damage with what is known of the layers without it."""
    damage = matrix(results)
    found = {"damage": [bootstrap.mean(row) for row in damage]}
    found["correlations"] = {"layer index": correlation(np.arange(len(damage)), damage)}
    if profile is not None:
        found["sensitivity"] = [layer.mean_kl for layer in profile.layers]
        found["correlations"]["sensitivity"] = correlation(found["sensitivity"], damage)
    return found
