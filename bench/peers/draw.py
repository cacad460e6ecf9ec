"""results.json of bench/compare.py as a picture: draw.py RESULTS.json OUT.png."""

import json
import math
import sys

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot, ticker  # noqa: E402

COLOURS = {
    "ours": "#1f5f8b", "ours-10": "#3a9bd9", "llama-q4_1": "#8a8a8a", "llama-q4_0": "#b5b5b5", "llama-bf16": "#d9d9d9",
    "ort": "#7a9a5b", "openvino": "#c2703d", "openvino-10": "#e8a878",
}  # fmt: skip


def bars(axes, results, figure):
    cases = [n for n, c in results.items() if n != "kept rows" and any(e["summary"].get(figure) for e in c.values())]
    keys = [k for k in COLOURS if any(results[n].get(k, {}).get("summary", {}).get(figure) for n in cases)]
    width = 0.8 / max(1, len(keys))
    for i, key in enumerate(keys):
        at, heights, low, high, title = [], [], [], [], key
        for j, name in enumerate(cases):
            entry = results[name].get(key)
            found = entry and entry["summary"].get(figure)
            if found:
                title = entry["title"]
                at.append(j + (i - (len(keys) - 1) / 2) * width)
                heights.append(found["median"])
                low.append(found["median"] - found["min"])
                high.append(found["max"] - found["median"])
        axes.bar(at, heights, width, color=COLOURS[key], label=title, yerr=(low, high), error_kw={"linewidth": 0.7})
    axes.set_xticks(range(len(cases)), cases)
    axes.set_ylabel("tokens/s")
    axes.set_yscale("log")
    axes.set_ylim(bottom=10 ** math.floor(math.log10(axes.get_ylim()[0])))
    axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:.0f}"))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    axes.grid(axis="y", which="both", linewidth=0.3)
    axes.set_axisbelow(True)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        result = json.load(file)
    figure, panels = pyplot.subplots(2, 1, figsize=(11, 8), layout="constrained")
    for axes, name in zip(panels, ("prefill", "decode")):
        axes.set_title(f"{name}, tokens/s (log scale; medians, smallest to largest)")
        bars(axes, result["results"], name)
    figure.legend(*panels[1].get_legend_handles_labels(), fontsize=8, ncols=3, loc="outside lower center")
    note = " - QUICK RUN, MEANS NOTHING" if result["quick"] else ""
    figure.suptitle(f"{result['model']}, {result['threads']} threads{note}", fontsize=10)
    figure.savefig(sys.argv[2], dpi=120)


if __name__ == "__main__":
    main()
