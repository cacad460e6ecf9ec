"""Perplexity of a text: windows of `length` tokens that are compressed and `tokens` after them that are scored, so that every
token after the first `length` is scored once."""

import functools
import math

from . import bootstrap, methods


TOKENIZED = 1 << 18  # characters; a server takes at most 1 MiB at once


def parts(text):
    """Whole lines of so many characters together, or one that is longer."""
    found, size = [[]], 0
    for line in text.splitlines(keepends=True):
        if found[-1] and size + len(line) > TOKENIZED:
            found.append([])
            size = 0
        found[-1].append(line)
        size += len(line)
    return ["".join(lines) for lines in found]


def jobs(options, client, tokens):
    first, *rest = parts(options.file.read_text(encoding="utf-8"))
    ids = tokens.text(first) + [token for part in rest for token in tokens.following(part)]
    starts = range(0, len(ids) - options.length - options.tokens + 1, options.tokens)
    if not starts:
        raise ValueError(f"{options.file} has {len(ids)} tokens: fewer than --length and --tokens together")
    step = max(1, len(starts) // options.windows)
    for start in starts[::step][: options.windows]:
        prompt, rest = (
            ids[start : start + options.length],
            ids[start + options.length : start + options.length + options.tokens],
        )
        for method, fraction in methods.cells(options.methods, options.fractions):
            kv = options.sizing.kv(method, fraction)
            yield (start, method.name, fraction), functools.partial(measure, client, prompt, rest, kv)


def measure(client, prompt, rest, kv):
    response = client.score(prompt, [rest], kv=kv(len(prompt)))
    cache = response.cache
    found = {"logprob": response.continuations[0].logprob, "tokens": len(rest)}
    return found | {"kv_bytes": cache.kv_bytes, "full_kv_bytes": cache.full_kv_bytes}


def summary(results):
    cells = {}
    for (start, method, fraction), result in results.items():
        cells.setdefault((fraction, method), {})[start] = result
    found = []
    full = cells.get((None, "full"), {})
    for (fraction, method), windows in cells.items():
        losses = [-r["logprob"] / r["tokens"] for r in windows.values()]
        loss = bootstrap.mean(losses)
        entry = {"method": method, "fraction": fraction, "windows": len(windows), "loss": loss}
        entry["perplexity"] = {k: v if k in ("documents", "left_out") else math.exp(v) for k, v in loss.items()}
        entry["bytes_share"] = sum(r["kv_bytes"] for r in windows.values()) / sum(
            r["full_kv_bytes"] for r in windows.values()
        )
        shared = sorted(set(full) & set(windows))
        if shared and method != "full":
            mine, theirs = ([-c[s]["logprob"] / c[s]["tokens"] for s in shared] for c in (windows, full))
            entry["loss_to_full"] = bootstrap.difference(mine, theirs)
        found.append(entry)
    return found
