"""How far a compressed cache's distributions are from the full cache's on documents, teacher-forced."""

import functools

from . import bootstrap, methods, texts


def picked(options, tokens, needed):
    """The documents that are measured, each with its first `needed` tokens or more."""

    def long_enough(document):
        if len(document.text) < 2 * needed:
            return None
        ids = tokens.text(document.text[: 12 * needed])
        return ids if len(ids) >= needed else None

    found = texts.documents(options.documents, options.corpus)
    return texts.chosen(found, options.split, options.count, long_enough)


def jobs(options, client, tokens):
    """(key, measure) of every document, method and size."""
    for document, ids in picked(options, tokens, max(options.lengths) + options.tokens):
        for length in options.lengths:
            for method, fraction in methods.cells(options.methods, options.fractions):
                kv = options.sizing.kv(method, fraction)
                window = ids[: length + options.tokens]
                key = (length, document.digest, method.name, fraction)
                yield key, functools.partial(measure, client, document.name, window[:length], window[length:], kv)


def measure(client, name, prompt, continuation, kv):
    response = client.score(prompt, [continuation], kv=kv(len(prompt)), reference=True)
    scored = response.continuations[0]
    return {
        "document": name,
        "mean_kl": scored.mean_kl,
        "agreement": sum(token.top1_agrees for token in scored.tokens) / len(scored.tokens),
        "logprob": scored.logprob,
        "reference_logprob": sum(token.reference_logprob for token in scored.tokens),
        "kv_bytes": response.cache.kv_bytes,
        "full_kv_bytes": response.cache.full_kv_bytes,
    }


def summary(results):
    """One entry a length, size and method, with what it is beside the baseline of that size: all of the same documents."""
    cells = {}
    for (length, document, method, fraction), result in sorted(results.items(), key=str):
        cells.setdefault((length, fraction, method), {})[document] = result
    found = []
    for (length, fraction, method), by_document in cells.items():
        entry = {"length": length, "fraction": fraction, "method": method, "documents": len(by_document)}
        kl = [r["mean_kl"] for r in by_document.values()]
        entry["mean_kl"] = bootstrap.mean(kl)
        entry["agreement"] = bootstrap.mean([r["agreement"] for r in by_document.values()])
        entry["bytes_share"] = sum(r["kv_bytes"] for r in by_document.values()) / sum(
            r["full_kv_bytes"] for r in by_document.values()
        )
        baseline = cells.get((length, fraction, methods.BASELINE), {})
        shared = sorted(set(baseline) & set(by_document))
        if shared and method != methods.BASELINE:
            mine, base = ([c[d]["mean_kl"] for d in shared] for c in (by_document, baseline))
            entry["kl_ratio"] = bootstrap.ratio(mine, base)
            entry["kl_difference"] = bootstrap.difference(mine, base)
            mine, base = ([c[d]["agreement"] for d in shared] for c in (by_document, baseline))
            entry["agreement_difference"] = bootstrap.difference(mine, base)
        found.append(entry)
    return found
