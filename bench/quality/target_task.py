"""Whether a size that is asked for as target_mean_kl has that mean KL on documents that calibration never saw."""

import functools

from . import bootstrap, fidelity_task


def jobs(options, client, tokens):
    """(key, measure) of every document, length and target."""
    for document, ids in fidelity_task.picked(options, tokens, max(options.lengths) + options.tokens):
        for length in options.lengths:
            for target in options.targets:
                kv = {"size": {"target_mean_kl": target}}
                prompt, rest = ids[:length], ids[length : length + options.tokens]
                measure = functools.partial(
                    fidelity_task.measure, client, document.name, prompt, rest, lambda _, kv=kv: kv
                )
                yield (length, target, document.digest), measure


def summary(results):
    """One entry a length and target."""
    cells = {}
    for (length, target, document), result in sorted(results.items()):
        cells.setdefault((length, target), {})[document] = result
    found = []
    for (length, target), by_document in cells.items():
        kl = [result["mean_kl"] for result in by_document.values()]
        found.append({
            "length": length, "target": target, "documents": len(kl), "mean_kl": bootstrap.mean(kl),
            "to_target": bootstrap.mean([value / target for value in kl]),
            "bytes_share": sum(r["kv_bytes"] for r in by_document.values()) / sum(r["full_kv_bytes"] for r in by_document.values()),
        })  # fmt: skip
    return found
