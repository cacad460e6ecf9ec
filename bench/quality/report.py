"""Summaries as Markdown tables."""

from report import table  # bench/report.py


def figure(interval, digits=3):
    """A value with its bounds."""
    if interval is None:
        return "-"
    text = f"{interval['value']:.{digits}g}"
    if "low" in interval:
        text += f" [{interval['low']:.{digits}g}, {interval['high']:.{digits}g}]"
    return text + (f" ({interval['left_out']} resamples left out)" if "left_out" in interval else "")


def share(fraction):
    return "all" if fraction is None else f"{100 * fraction:g} %"


def in_order(entries, titles, *keys):
    order = list(titles)
    return sorted(
        entries, key=lambda e: (*((e[k] is not None, e[k]) for k in (*keys, "fraction")), order.index(e["method"]))
    )


def fidelity(summary, titles):
    parts = []
    for length in sorted({entry["length"] for entry in summary}):
        rows = [["size", "method", "of the full bytes", "mean KL, nats", "KL, ratio to SnapKV uniform", "difference", "top-1 agreement", "difference", "documents"]]  # fmt: skip
        for e in in_order([e for e in summary if e["length"] == length], titles):
            rows.append([
                share(e["fraction"]), titles[e["method"]], f"{e['bytes_share']:.3f}", figure(e["mean_kl"]),
                figure(e.get("kl_ratio")), figure(e.get("kl_difference")), figure(e["agreement"]),
                figure(e.get("agreement_difference")), e["documents"],
            ])  # fmt: skip
        parts += [f"## After {length} tokens", table(rows)]
    return parts


def answers(summary, titles):
    parts = []
    for question in sorted({entry["question"] for entry in summary}, reverse=True):
        for task, length in sorted({(e["task"], e["length"]) for e in summary}):
            found = [e for e in summary if (e["task"], e["length"], e["question"]) == (task, length, question)]
            if not found:
                continue
            rows = [["size", "method", "of the full bytes", "score", "difference to SnapKV uniform", "share of the full cache's", "right answer's log-likelihood", "difference to SnapKV uniform", "items"]]  # fmt: skip
            for e in in_order(found, titles):
                rows.append([
                    share(e["fraction"]), titles[e["method"]], f"{e['bytes_share']:.3f}", figure(e.get("score")),
                    figure(e.get("score_to_snapkv")), figure(e.get("score_share_of_full")),
                    figure(e.get("gold_logprob")), figure(e.get("gold_logprob_to_snapkv")), e["items"],
                ])  # fmt: skip
            parts += [f"## {task}, {length} tokens, question {question}", table(rows)]
    return parts


def perplexity(summary, titles):
    rows = [["size", "method", "of the full bytes", "perplexity", "loss, difference to every position", "windows"]]
    for e in in_order(summary, titles):
        rows.append([
            share(e["fraction"]), titles[e["method"]], f"{e['bytes_share']:.3f}", figure(e["perplexity"], 4),
            figure(e.get("loss_to_full")), e["windows"],
        ])  # fmt: skip
    return [table(rows)]


def damage(summary):
    sensitivity = summary.get("sensitivity")
    rows = [["layer", "damage alone, mean KL, nats", *(["sensitivity, nats"] if sensitivity else [])]]
    for layer, interval in enumerate(summary["damage"]):
        rows.append([layer, figure(interval), *([f"{sensitivity[layer]:.3g}"] if sensitivity else [])])
    correlations = [["rank correlation of the damage with", "Spearman"]]
    correlations += [[name, figure(interval)] for name, interval in summary["correlations"].items()]
    return [table(correlations), table(rows)]


def sweep(summary):
    rows = [["profile", "largest over smallest", "rank correlation of its halves", "with the server's own", "with the damage", "mean KL of its plan, nats", "ratio to uniform", "ratio to the server's own"]]  # fmt: skip

    def number(value):
        return "-" if value is None else f"{value:.3g}"

    for e in summary:
        name = {"server": "the server's own", "uniform": "none: uniform shares"}.get(e["setting"]) or f"{e['setting']} {e['value']:g}"  # fmt: skip
        measured = [number(e.get(key)) for key in ("skew", "split_half", "to_own", "to_damage")]
        rows.append([name, *measured, *(figure(e.get(key)) for key in ("mean_kl", "kl_ratio", "kl_to_own"))])
    return [table(rows)]


def target(summary):
    rows = [["tokens", "target, nats", "mean KL, nats", "of the target", "of the full bytes", "documents"]]
    for e in summary:
        rows.append([
            e["length"], f"{e['target']:g}", figure(e["mean_kl"]), figure(e["to_target"]), f"{e['bytes_share']:.3f}", e["documents"],
        ])  # fmt: skip
    return [table(rows)]


def efficiency(summary, titles):
    parts = []
    for length in sorted({entry["length"] for entry in summary}):
        rows = [["size", "method", "time to the first token", "whole answer", "decode, tokens/s", "bytes kept", "most bytes in prefill", "rounds"]]  # fmt: skip
        for e in in_order([e for e in summary if e["length"] == length], titles):
            cells = (
                figure(e.get(f"{name}_ratio")) for name in ("first", "whole", "decode_rate", "kv_bytes", "peak_bytes")
            )
            rows.append([share(e["fraction"]), titles[e["method"]], *cells, e["rounds"]])
        parts += [f"## After {length} tokens, as a share of the full cache's of the same round", table(rows)]
    return parts


def markdown(result, parts):
    head = [f"# {result['title']}: {result['settings']['model']}"]
    if result["quick"]:
        head.append("**From a run with --quick: the figures mean nothing.**")
    head.append(f"`{result['command']}`")
    if result["options"]["command"] == "efficiency":
        head.append("Medians of the rounds, in brackets the least and the largest.")
    else:
        head.append("Intervals: 95 %, bootstrap over documents or items. Differences and ratios are paired.")
    return "\n\n".join([*head, *parts]) + "\n"
