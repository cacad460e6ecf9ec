"""What bench/compare.py writes of its results: JSON, a Markdown table and a picture."""

import json
import pathlib
import re
import subprocess

from bench_server import SOURCE
from rounding import rounded

FIGURES = (("prefill", "prefill, tokens/s"), ("decode", "decode, tokens/s"))


def short(figures):
    return ", ".join(f"{n} {rounded(v)}" for n, v in figures.items() if not isinstance(v, list))


def processor():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    found = {name: re.search(rf"^{name}\s*: (.*)$", text, flags=re.M) for name in ("model name", "cpu family", "model")}
    cores = len(re.findall(r"^processor\s*:", text, flags=re.M))
    described = ", ".join(f"{name} {match.group(1)}" for name, match in found.items() if match)
    return f"{cores} processors, {described}"


def table(rows):
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def spread(s, scale=1.0):
    if s is None:
        return "-"
    median, low, high = (number(s[name] * scale) for name in ("median", "min", "max"))
    return median if s["rounds"] == 1 else f"{median} ({low} to {high})"


def titles(results):
    found = {}
    for case in results.values():
        for key, entry in case.items():
            found[key] = entry["title"]
    return found


def speed_table(result, figure):
    """A line a contestant, a column a case; None where no case has the figure."""
    results = result["results"]
    names = [n for n, c in results.items() if any(e["summary"].get(figure) for e in c.values())]
    if not names:
        return None
    rows = [["", *names]]
    for key, title in titles(results).items():
        cells = [spread(results[name].get(key, {}).get("summary", {}).get(figure)) for name in names]
        if any(cell != "-" for cell in cells):
            rows.append([title, *cells])
    return table(rows)


def kl_table(result):
    rows = []
    names = [n for n, c in result["results"].items() if any("kl" in e for e in c.values())]
    for key, title in titles(result["results"]).items():
        cells = []
        for name in names:
            kl = result["results"][name].get(key, {}).get("kl")
            cells.append(f"{kl['mean_nats']:.3f} ± {kl['standard_error']:.3f}" if kl else "-")
        if any(cell != "-" for cell in cells):
            rows.append([title, *cells])
    return table([["", *names], *rows]) if rows else None


def memory_table(result):
    entries = [e for case in result["results"].values() for e in case.values() if e["summary"].get("peak_bytes")]
    rows = [[e["title"], f"{e['summary']['peak_bytes']['median'] / 1e9:.2f}"] for e in entries]
    return table([["", "GB"], *rows]) if rows else None


def lines_table(result):
    says = {True: "yes", False: "**no**", None: "not measured"}
    rows = [["line", "beside", "needed", "measured", "holds"]]
    for line in result["lines"]:
        measured = "-"
        if "ratio" in line:
            measured = f"{line['ratio']:.2f}"
            if "min" in line:
                measured += f" ({line['min']:.2f} to {line['max']:.2f})"
        rows.append([line["line"], line["text"], line["needed"], measured, says[line["holds"]]])
    return table(rows)


def limits_table(result):
    rows = [["when", "memory, GB/s", "bf16 dot, GFLOP/s", "int8 dot, GOP/s", "fp32 fma, GFLOP/s", "load average"]]
    for entry in result["machine"]["limits"]:
        when = next(f"{name} {entry[name]}" for name in ("before", "after") if name in entry)
        figures = [f"{entry[name]:.0f}" for name in ("memory", "bf16 dot", "int8 dot", "fp32 fma")]
        rows.append([when, *figures, f"{entry['load_average']:.2f}"])
    return table(rows)


def markdown(result):
    parts = [f"# RippleKV beside others: {result['model']}, {result['threads']} threads"]
    if result["quick"]:
        parts.append("**From a run with --quick: the figures mean nothing.**")
    parts.append(f"`{result['command']}` on {result['machine']['processor']}; {result['minutes']:.0f} minutes. Medians of the "
                 "rounds, smallest and largest in brackets.")  # fmt: skip
    parts += ["## Requirements", lines_table(result)]
    for figure, title in FIGURES:
        if found := speed_table(result, figure):
            parts += [f"## {title[0].upper()}{title[1:]}", found]
    if found := memory_table(result):
        parts += ["## Highest resident memory, 8 sequences of 8192", found]
    if found := kl_table(result):
        parts += [
            "## Mean KL divergence from the own full cache, nats a token",
            "Continuations drawn from the compressed cache, with the standard error of the mean. llama.cpp and ONNX Runtime "
            "GenAI compress nothing.",
            found,
        ]
    parts += ["## The machine's limits", limits_table(result)]
    shares = [e["summary"]["client_cpu"]["median"] for c in result["results"].values() for e in c.values()
              if e["summary"].get("client_cpu")]  # fmt: skip
    if shares:
        parts.append(f"RippleKV's client took {100 * min(shares):.0f} to {100 * max(shares):.0f} % of one processor.")
    return "\n\n".join(parts) + "\n"


def write(result, folder):
    folder.mkdir(parents=True, exist_ok=True)
    json_file = folder / "results.json"
    json_file.write_text(json.dumps(rounded(result), indent=1) + "\n")
    (folder / "results.md").write_text(markdown(result))
    python = SOURCE / "build" / "peers" / "venv" / "bin" / "python"
    if python.exists():
        draw = SOURCE / "bench" / "peers" / "draw.py"
        subprocess.run([python, draw, json_file, folder / "results.png"], check=True)
