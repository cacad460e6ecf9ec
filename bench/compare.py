#!/usr/bin/env python3
"""RippleKV's speed, memory and fidelity beside llama.cpp, OpenVINO GenAI and ONNX Runtime GenAI: same machine, model and
prompts, one run.

    bench/install_peers.sh                          # once: the others, into build/peers
    .venv/bin/python bench/compare.py [--rounds 5] [--out build/compare]
    .venv/bin/python bench/compare.py --quick                        # does everything work? Its figures mean nothing
    .venv/bin/python bench/compare.py --cases 512 8192 --only ours-10 openvino

RippleKV runs with its default settings and is called through gRPC by a client in C++; the others run in processes of
their own. All take turns, round by round, with greedy decoding that ignores end-of-text tokens. Writes results.json,
results.md and results.png. What is compared and how: docs/benchmarks.md. Run it when nothing else runs.

Exit code 1: a requirement that was measured is not held.
"""

import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time

import alone
import fidelity
import report
from bench_server import SOURCE
from cases import CASES, COMPRESSING, Failed, figures_of, prompts_of, quick, summary
from compare_kvpress import prompt_ids
from contestants import PEERS, make_contestants
from lines import verdicts

ALONE = {"neighbour": alone.neighbour, "start": alone.start}


def say(text):
    print(text, file=sys.stderr, flush=True)


def machine(options):
    """The processor's limits at this moment."""
    program = options.build / "ripplekv-kernels-bench"
    limits = json.loads(subprocess.check_output([program, "--limits", "--threads", str(options.threads)]))
    return {**limits, "load_average": os.getloadavg()[0]}


def contestants_of(case, contestants, options):
    return [
        c for key, c in contestants.items()
        if key in options.only and key not in case.without and (not case.only or key in case.only)
    ]  # fmt: skip


def warm_up(case, contestant, ids):
    """Everything that is set up on the first use. Prompts are cut where nothing depends on their length (llama.cpp) and
    nothing of the run is kept."""
    prompts = prompts_of(case, contestant, ids)
    keeps = case.keep_prompts and contestant.keeps_prompts
    if not keeps and (case.sequences > 1 or contestant.key.startswith("llama")):
        prompts = [ids[:512] for ids in prompts]
    contestant.run(prompts, min(case.new, 8), case.keep_prompts)


def take_turns(case, started, ids, found, options):
    for number in range(min(options.rounds, case.most_rounds)):
        turns = [c for c in started if c.key in found]
        first = number % max(1, len(turns))
        for contestant in turns[first:] + turns[:first]:
            try:
                run = contestant.run(prompts_of(case, contestant, ids), case.new, case.keep_prompts)
                figures = figures_of(case, run)
            except Failed as error:
                say(f"  {case.name}: {contestant.key} failed: {error}")
                del found[contestant.key]
                continue
            if case.memory and number == 0:
                figures["peak_bytes"] = contestant.peak_bytes()
            say(f"  {case.name}: round {number + 1}: {contestant.key}: {report.short(figures)}")
            for name, value in figures.items():
                found[contestant.key]["figures"].setdefault(name, []).append(value)


def measure(case, contestants, ids, options):
    """Results by contestant. A contestant that fails is told and left out."""
    started, found = [], {}
    try:
        for contestant in contestants:
            say(f"  {case.name}: {contestant.key} starts")
            try:
                contestant.start(case, options)
                started.append(contestant)
                warm_up(case, contestant, ids)
                found[contestant.key] = {"title": contestant.title, "figures": {}}
            except Failed as error:
                say(f"  {case.name}: {contestant.key} failed: {error}")
        take_turns(case, started, ids, found, options)
        if options.kl and case.sequences == 1:
            measure_fidelity(case, {c.key: c for c in started if c.key in found}, ids[: case.prompt], found, options)
    finally:
        for contestant in started:
            contestant.stop()
    for entry in found.values():
        entry["summary"] = {name: summary(values) for name, values in entry["figures"].items()}
    return found


def measure_fidelity(case, started, ids, found, options):
    if case.name not in ("512", "2048", "8192"):
        return
    samples = 1 if options.quick else fidelity.SAMPLES
    tokens = 16 if options.quick else fidelity.TOKENS
    if "ours-10" in started:
        found["ours-10"]["kl"] = fidelity.ours(started["ours-10"], ids, samples, tokens)
    if "openvino-10" in started and "openvino" in started:
        found["openvino-10"]["kl"] = fidelity.openvino(
            started["openvino-10"], started["openvino"], ids, samples, tokens
        )
    for key in COMPRESSING:
        if "kl" in found.get(key, {}):
            say(f"  {case.name}: KL of {key}: {report.short(found[key]['kl'])}")


def options_from_command_line():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model = SOURCE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    contestants = list(make_contestants(model))
    names = [case.name for case in CASES] + list(ALONE)
    parser.add_argument("--model", type=pathlib.Path, default=model, help="GGUF file")
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build" / "release", help="build directory")
    parser.add_argument("--out", type=pathlib.Path, default=SOURCE / "build" / "compare", help="where results go")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of everyone")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contestant; the longest cases take fewer")
    parser.add_argument("--cases", nargs="+", choices=names, default=names, metavar="CASE", help=", ".join(names))
    parser.add_argument("--only", nargs="+", choices=contestants, default=contestants, metavar="CONTESTANT",
                        help=", ".join(contestants))  # fmt: skip
    parser.add_argument("--profile-dir", type=pathlib.Path, help="profiles that RippleKV's plan is made from (default: "
                        "none, uniform shares)")  # fmt: skip
    parser.add_argument(
        "--no-kl", dest="kl", action="store_false", help="do not measure how far compressed caches are off"
    )
    parser.add_argument("--quick", action="store_true", help="small cases, two rounds")
    options = parser.parse_args()
    if options.rounds < 1 or options.threads < 1:
        parser.error("--rounds and --threads must be at least 1")
    for needed in (options.model, options.build / "ripplekv-server", options.build / "ripplekv-bench-client"):
        if not needed.exists():
            parser.error(f"{needed} is not there: build the release preset, scripts/get_model.sh")
    if any(key not in ("ours", "ours-10") for key in options.only) and not (PEERS / "llama-build").exists():
        parser.error("the others are not installed: bench/install_peers.sh, or --only ours ours-10")
    return options


def main():
    options = options_from_command_line()
    begin = time.time()
    contestants = make_contestants(options.model)
    chosen = [case for case in CASES if case.name in options.cases]
    if options.quick:
        chosen = [quick(case) for case in chosen]
    ids = prompt_ids(options.model, max([c.prompt + 64 * c.sequences for c in chosen], default=1024))
    results, limits, by_itself = {}, [{"before": "all", **machine(options)}], {}
    result = {
        "command": shlex.join([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]),
        "quick": options.quick,
        "threads": options.threads,
        "model": options.model.name,
        "machine": {"processor": report.processor(), "limits": limits},
        "cases": {c.name: {"text": c.text, "sequences": c.sequences, "prompt": c.prompt, "new": c.new} for c in chosen},
        "results": results,
        "alone": by_itself,
    }

    def keep():
        result["lines"] = verdicts(results, by_itself)
        result["minutes"] = (time.time() - begin) / 60
        report.write(result, options.out)

    for case in chosen:
        taking_part = contestants_of(case, contestants, options)
        if taking_part:
            results[case.name] = measure(case, taking_part, ids, options)
            limits.append({"after": case.name, **machine(options)})
            keep()  # what follows may take long, or be interrupted
    for name, function in ALONE.items():
        if name in options.cases and "ours" in options.only:
            say(f"  {name}")
            by_itself[name] = function(options, ids)
            say(f"  {name}: {report.short(by_itself[name])}")
    keep()
    print((options.out / "results.md").read_text())
    sys.exit(1 if any(line["holds"] is False for line in result["lines"]) else 0)


if __name__ == "__main__":
    main()
