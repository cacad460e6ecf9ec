"""The quality bench: what compressing the cache changes in a model's output, measured through the API.

    .venv/bin/python bench/quality documents     KL and top-1 agreement on held-out documents
    .venv/bin/python bench/quality damage        KL where one layer alone is compressed, beside the profile
    .venv/bin/python bench/quality sweep         profiles of other settings, and plans made from them
    .venv/bin/python bench/quality target        what target_mean_kl gives on held-out documents
    .venv/bin/python bench/quality ruler         six synthetic tasks of RULER
    .venv/bin/python bench/quality retrieval     facts hidden in prose, that the full cache finds
    .venv/bin/python bench/quality longbench     LongBench from local files
    .venv/bin/python bench/quality perplexity    of a text file
    .venv/bin/python bench/quality efficiency    times and memory of a request by method
    .venv/bin/python bench/quality profile       the sensitivity profile
    .venv/bin/python bench/quality lm-eval       the lm-eval adapter beside lm-eval's own backend
    .venv/bin/python bench/quality methods       what is compared

Each starts a server, or measures the one at --address, and writes results.jsonl (as they come: a run that was stopped goes on
where it was), results.json, results.md and pictures into --out. --quick makes everything small, to see that it works. How to
read the results: docs/quality.md.
"""

import json
import pathlib
import shlex
import sys

from report import table  # bench/report.py
from tqdm import tqdm

from . import (
    answers_tasks,
    damage_task,
    draw,
    efficiency_task,
    fidelity_task,
    lm_eval_task,
    longbench,
    methods,
    perplexity_task,
    profile_task,
    report,
    served,
    sweep_task,
    target_task,
)
from .asking import Tokens
from .journal import Journal, SettingsDiffer
from .options import SETTINGS, parser, prepare


def jobs_of(options, client, model, profile, results):
    tokens = Tokens(client)
    longest = model.model.context_length
    if options.command == "sweep":
        return sweep_task.jobs(options, client, tokens, profile, results)
    if options.command == "target":
        return list(target_task.jobs(options, client, tokens))
    if options.command == "efficiency":
        if max(options.lengths) + options.answer > longest:
            raise ValueError(f"--lengths and --answer: more than the model's {longest} positions")
        return list(efficiency_task.jobs(options, client, tokens))
    if options.command == "documents":
        if max(options.lengths) + options.tokens > longest:
            raise ValueError(f"--lengths and --tokens: more than the model's {longest} positions")
        return list(fidelity_task.jobs(options, client, tokens))
    if options.command == "damage":
        return list(damage_task.jobs(options, client, tokens, model.model.layers))
    if options.command == "ruler":
        return list(answers_tasks.ruler_jobs(options, client, tokens))
    if options.command == "retrieval":
        return answers_tasks.retrieval_jobs(options, client, tokens, results)
    if options.command == "longbench":
        options.max_length = options.max_length or longbench.longest_prompt(longest)
        return list(answers_tasks.longbench_jobs(options, client, tokens))
    return list(perplexity_task.jobs(options, client, tokens))


TITLES = {method.name: method.title for method in methods.ALL}
SUMMARIES = {
    "documents": (fidelity_task.summary, report.fidelity),
    "ruler": (answers_tasks.summary, report.answers),
    "retrieval": (answers_tasks.summary, report.answers),
    "longbench": (answers_tasks.summary, report.answers),
    "perplexity": (perplexity_task.summary, report.perplexity),
    "efficiency": (efficiency_task.summary, report.efficiency),
}


def setting(value):
    """A file by its name and what is in it."""
    return f"{value.name}, sha256 {served.digest(value)}" if isinstance(value, pathlib.Path) else str(value)


def kept_under(command, key):
    """A result's key in the journal: what it is of, and what a request of its method says."""
    if command == "target":
        return (*key, "")
    kv = {"selector": methods.SNAPKV} if command in ("damage", "sweep") else methods.METHODS[key[-2]].kv
    return (*key, methods.said(kv))


def check_types(options, model):
    """Methods whose types the plan chooses need a server whose plan does."""
    asking = [m.name for m in getattr(options, "methods", []) if m.chosen_types]
    if asking and not model.plan.chooses_types:
        raise ValueError(
            f"--methods {' '.join(asking)}: the server's plan does not choose types: it must run with --kv-type auto "
            "--allocator damage_curves"
        )


def measure(options, client, model, profile):
    check_types(options, model)
    options.sizing = methods.Sizing.of(model)
    settings = {
        "task": options.command,
        "quick": options.quick,
        "flags": options.flags,
        **served.settings(options, model, profile),
    }
    settings |= {name: setting(getattr(options, name)) for name in SETTINGS.get(options.command, ())}
    with Journal(options.out / "results.jsonl", settings) as journal:
        measured = {}
        jobs = jobs_of(options, client, model, profile, measured)
        total = len(jobs) if isinstance(jobs, list) else None
        with tqdm(total=total, desc=options.command, unit="call") as bar:
            for key, job in jobs:
                kept = kept_under(options.command, key)
                if kept not in journal:
                    journal.add(kept, options.sizing.in_bf16(job()))
                measured[key] = journal.results[kept]
                bar.update()
        return settings, measured


def told(options, measured, profile):
    """The summary, and its tables."""
    if options.command == "damage":
        summary = damage_task.summary(measured, profile)
        return summary, report.damage(summary)
    if options.command == "sweep":
        summary = sweep_task.summary(measured, profile)
        return summary, report.sweep(summary)
    if options.command == "target":
        summary = target_task.summary(measured)
        return summary, report.target(summary)
    summarise, tables = SUMMARIES[options.command]
    summary = summarise(measured)
    return summary, tables(summary, TITLES)


def write(options, settings, measured, profile, command):
    summary, tables = told(options, measured, profile)
    result = {
        "title": options.title, "command": command, "quick": options.quick, "settings": settings,
        "options": {name: value for name, value in vars(options).items() if name not in ("corpus", "small", "default_of", "methods", "sizing", "title")},
        "methods": {m.name: {"title": m.title, "kv": m.kv} for m in getattr(options, "methods", [])},
        "summary": summary, "results": [{"key": key, **value} for key, value in measured.items()],
    }  # fmt: skip
    (options.out / "results.json").write_text(json.dumps(result, indent=1, default=str) + "\n", encoding="utf-8")
    text = report.markdown(result, tables)
    (options.out / "results.md").write_text(text, encoding="utf-8")
    print(text)
    if options.command not in ("documents", "damage"):
        return
    if not draw.available():
        print(draw.MISSING, file=sys.stderr)
    elif options.command == "documents":
        for length in options.lengths:
            draw.kl_against_bytes(summary, TITLES, length, options.out / f"kl-{length}.png")
    elif profile is not None:
        rho = summary["correlations"]["sensitivity"]
        draw.damage(summary["sensitivity"], summary["damage"], rho, options.out / "damage.png")


def run(options, command):
    """Whether what the command compares is equal; True where it only measures."""
    prepare(options)
    with served.serving(options) as (client, model, profile):
        if options.command == "profile":
            profile_task.run(options, client, profile, command)
            return True
        if options.command == "lm-eval":
            return lm_eval_task.run(options, client.address, command)
        settings, measured = measure(options, client, model, profile)
        write(options, settings, measured, profile, command)
    print(f"written to {options.out}", file=sys.stderr)
    return True


def main():
    options = parser(__doc__).parse_args()
    if options.command == "methods":
        rows = [["method", "what", "request"]] + [[m.name, m.title, f"`{json.dumps(m.kv)}`"] for m in methods.ALL]
        print(table(rows))
        return 0
    import ripplekv

    try:
        held = run(options, shlex.join(["bench/quality", *sys.argv[1:]]))
    except (ValueError, SettingsDiffer, ripplekv.RippleKVError) as error:
        print(f"quality: {error}", file=sys.stderr)
        return 1
    return 0 if held else 1
