"""What a request takes by method, as a client sees it: the time to the first token, of the whole answer, and memory."""

import functools
import statistics
import time

from . import fidelity_task, methods

BASELINE = "full"


def jobs(options, client, tokens):
    """(key, measure) of every round, the methods of a round in turn and another one first each time."""
    longest = max(options.lengths)
    documents = fidelity_task.picked(options, tokens, longest)
    for length in options.lengths:
        for turn in range(options.rounds):
            document, ids = documents[turn % len(documents)]
            cells = methods.cells(options.methods, options.fractions)
            start = turn % len(cells)
            for method, fraction in cells[start:] + cells[:start]:
                kv = options.sizing.kv(method, fraction)(length)
                measure = functools.partial(answer, client, ids[:length], options.answer, kv)
                yield (length, turn, document.digest, options.answer, method.name, fraction), measure


def answer(client, ids, tokens, kv):
    begin = time.monotonic()
    first = None
    stream = client.stream(ids, kv=kv, max_tokens=tokens, ignore_eos=True, temperature=0.0)
    with stream:
        for _ in stream:
            first = first or time.monotonic()
    end = time.monotonic()
    cache = stream.complete.cache
    return {
        "first": first - begin,
        "whole": end - begin,
        "decode_rate": (tokens - 1) / (end - first),
        "kv_bytes": cache.kv_bytes,
        "full_kv_bytes": cache.full_kv_bytes,
        "peak_bytes": cache.peak_prefill_bytes,
    }


def summary(results):
    """One entry a length, size and method: medians, and medians of the ratios of each round to the full cache's."""
    cells = {}
    for (length, turn, _, _, method, fraction), result in results.items():
        cells.setdefault((length, fraction, method), {})[turn] = result
    found = []
    for (length, fraction, method), turns in cells.items():
        base = cells.get((length, None, BASELINE), {})
        entry = {"length": length, "fraction": fraction, "method": method, "rounds": len(turns)}
        for name in ("first", "whole", "decode_rate", "kv_bytes", "peak_bytes"):
            entry[name] = statistics.median(turn[name] for turn in turns.values())
            ratios = [turns[turn][name] / base[turn][name] for turn in turns if turn in base]
            if ratios:
                entry[f"{name}_ratio"] = {"value": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}
        found.append(entry)
    return found
