#!/usr/bin/env python3
"""How the server serves many at once, as its clients see it: each subcommand starts a server on a real model, measures one
thing over gRPC, and says whether the line that it should hold is held.

    .venv/bin/python bench/serving.py stall       gaps between the tokens of running requests while a long prompt is prefilled
    .venv/bin/python bench/serving.py batch       tokens a second of several sequences together beside one alone
    .venv/bin/python bench/serving.py memory      long prompts together in the KV memory that their plans need; resident memory from outside
    .venv/bin/python bench/serving.py calibrate   a calibration under streaming clients beside an idle one
    .venv/bin/python bench/serving.py overload    several times the requests that the server can take

Figures are ratios within one run on one machine; run it when nothing else runs. --json prints them all. Exit code 1: a
line is not held. Needs what scripts/install.sh --tests installs.
"""

import argparse
import asyncio
import json
import math
import os
import pathlib
import shlex
import statistics
import sys

from bench_server import SOURCE, endless, gaps_between, idle, make_contexts, now, quantile, server_of, streaming
from compare_kvpress import prompt_ids
from rounding import rounded
from service import stubs
from streams import aio_stubs, capacity, offer, stream, until

MIB = 1 << 20


# --- stall ---


def slice_totals(metrics, kind):
    name = 'ripplekv_slice_duration_seconds_{}{{slice="' + kind + '"}}'
    return metrics.get(name.format("sum"), 0), metrics.get(name.format("count"), 0)


def mean_slice(before, after, kind):
    (sum0, count0), (sum1, count1) = slice_totals(before, kind), slice_totals(after, kind)
    return (sum1 - sum0) / (count1 - count0)


async def one_stall(server, stub, arguments, ids):
    requests = [endless(ids[64 * i : 64 * (i + 1)], 4000) for i in range(arguments.clients)]
    async with streaming(stub, requests) as answers:
        begin = now()
        await asyncio.sleep(arguments.alone_seconds)
        before, sent = await asyncio.to_thread(server.metrics), now()
        long = await stream(stub, timeout=600, **endless(ids[: arguments.prompt_tokens], 1))
        end, after = now(), await asyncio.to_thread(server.metrics)
        assert long.ok, f"{long.code}: {long.message}"
        alone, during = gaps_between(answers, begin, sent), gaps_between(answers, sent, end)
    await idle(server)
    chunk = mean_slice(before, after, "prefill_chunk")
    return {
        "alone_median_s": statistics.median(alone),
        "alone_p99_s": quantile(alone, 0.99),
        "during_median_s": statistics.median(during),
        "during_p99_s": quantile(during, 0.99),
        "during_longest_s": max(during),
        "gaps_alone": len(alone),
        "gaps_during": len(during),
        "chunk_mean_s": chunk,
        "layer_end_mean_s": mean_slice(before, after, "prefill_compaction"),
        "p99_to_median_alone": quantile(during, 0.99) / statistics.median(alone),
        "p99_less_a_chunk_to_median_alone": (quantile(during, 0.99) - chunk) / statistics.median(alone),
    }


async def stall(arguments):
    ids = prompt_ids(arguments.model, arguments.prompt_tokens)
    with server_of(arguments, kv_memory="768MiB") as server:
        channel, stub = aio_stubs(server.address)
        async with channel:
            rounds = []
            for _ in range(arguments.rounds):
                rounds.append(await one_stall(server, stub, arguments, ids))
                print_round(arguments, rounds[-1])
    over_a_chunk = [r["p99_less_a_chunk_to_median_alone"] for r in rounds]
    typical = statistics.median(over_a_chunk)
    return {
        "rounds": rounds,
        "p99_to_median_alone": statistics.median(r["p99_to_median_alone"] for r in rounds),
        "p99_less_a_chunk_to_median_alone": typical,
        "worst_p99_less_a_chunk_to_median_alone": max(over_a_chunk),
        "line": "p99 of the gaps during a prefill <= 4 x their median alone + one prefill chunk (median of the rounds)",
        "holds": typical <= 4,
    }


# --- batch ---


async def decode_rate(server, stub, contexts, new_tokens):
    """Tokens a second of all, from when the last of them has its first token until that one has new_tokens more."""
    requests = [endless([0], 4000, context_id=context) for context in contexts]
    async with streaming(stub, requests, at_least=1) as answers:
        begin = now()
        last = min(answers, key=lambda answer: len(answer.ids))
        had, target = [len(answer.ids) for answer in answers], len(last.ids) + new_tokens
        await until(lambda: len(last.ids) >= target, 600, "the tokens")
        rate = sum(len(answer.ids) - n for answer, n in zip(answers, had, strict=True)) / (now() - begin)
    await idle(server)
    return rate


async def batch(arguments):
    n, length = arguments.clients, arguments.prompt_tokens
    ids = prompt_ids(arguments.model, n * length)
    prompts = [ids[length * i : length * (i + 1)] for i in range(n)]
    with server_of(arguments, kv_memory="1536MiB") as server:
        channel, stub = aio_stubs(server.address)
        async with channel:
            contexts = await make_contexts(stub, prompts)
            await decode_rate(server, stub, contexts[:1], 16)
            rounds = []
            for i in range(arguments.rounds):
                alone = await decode_rate(server, stub, [contexts[i % n]], arguments.new_tokens)
                together = await decode_rate(server, stub, contexts, arguments.new_tokens)
                rounds.append({"alone": alone, "together": together, "ratio": together / alone})
                print_round(arguments, rounds[-1])
    ratio = statistics.median(r["ratio"] for r in rounds)
    return {
        "rounds": rounds,
        "ratio": ratio,
        "line": f"{n} sequences decode at least 3 times the tokens a second of one (median of the rounds)",
        "holds": ratio >= 3,
    }


# --- memory ---


def planned_bytes(server, tokens, new_tokens):
    """Pages that a request reserves: its plan's positions and its output, in every layer."""
    # What a request takes does not depend on the memory that is asked about.
    request = stubs().calibration.PlanBudgetsRequest(
        prompt_tokens=tokens, memory_bytes=1 << 40, output_tokens=new_tokens
    )
    capacity = server.calibration.PlanBudgets(request, timeout=10).capacity
    return capacity.request_pages * capacity.page_bytes


async def together(server, stub, prompts, new_tokens):
    """Answers, and the highest of some gauges while they ran."""
    names = ("requests_running", "requests_prefilling", "requests_waiting", "kv_used_bytes", "work_reserved_bytes")
    peak = dict.fromkeys(names, 0)
    tasks = [asyncio.create_task(stream(stub, **endless(ids, new_tokens))) for ids in prompts]
    while not all(task.done() for task in tasks):
        metrics = await asyncio.to_thread(server.metrics)
        peak = {name: max(peak[name], metrics[f"ripplekv_{name}"]) for name in names}
        await asyncio.sleep(0.1)
    return [task.result() for task in tasks], peak


async def memory(arguments):
    n, tokens, new_tokens = arguments.clients, arguments.prompt_tokens, arguments.new_tokens
    ids = prompt_ids(arguments.model, tokens + 64 * n)
    prompts = [ids[64 * i : 64 * i + tokens] for i in range(n)]
    with server_of(arguments) as server:
        plan = planned_bytes(server, tokens, new_tokens)
        m = server.model().model
    layer_row = 2 * m.kv_heads * m.head_dim * 2  # keys and values in bf16
    # The arena's full layer is as long as the longest prompt that is let in.
    kv_memory = math.ceil(1.05 * (n * plan + (m.context_length - 1) * layer_row))
    full = n * tokens * m.layers * layer_row
    with server_of(arguments, kv_memory=kv_memory, max_batch=max(n, 8)) as server:
        channel, stub = aio_stubs(server.address)
        async with channel:
            for _ in range(2):  # what is set up once
                assert (await stream(stub, **endless(ids[:2000], 4))).ok
            await idle(server)
            rss = server.memory_bytes("VmRSS")
            arena = min(2000, tokens) * layer_row  # of the full layer, touched already
            server.reset_peak_memory()
            answers, peak = await together(server, stub, prompts, new_tokens)
            grown = server.memory_bytes("VmHWM") - rss
            bad = [a for a in answers if not a.ok or len(a.ids) != new_tokens]
            assert not bad, f"{bad[0].code}: {bad[0].message}"
    activations = tokens * (m.hidden_size + m.heads + m.kv_heads) * 4
    explained = {
        "plans": n * plan,
        "one_full_layer": tokens * layer_row - arena,
        "one_prompts_activations": activations,
    }
    allowance = 8 * MIB  # requests, selected indices, the allocator's rounding
    return {
        "kv_memory_bytes": kv_memory,
        "full_caches_bytes": full,
        "kv_memory_to_full_caches": kv_memory / full,
        "at_work_at_once": peak["requests_running"],
        "peak_of_gauges": peak,
        "resident_before_bytes": rss,
        "resident_growth_bytes": grown,
        "explained_bytes": explained,
        "growth_to_explained": grown / sum(explained.values()),
        "activations_of_all_bytes": n * activations,
        "line": f"{n} requests of {tokens} tokens at work at once in --kv-memory {kv_memory}; resident memory grows by "
        "their plans, one full layer and one prompt's activations (+ 8 MiB)",
        "holds": peak["requests_running"] == n and grown <= sum(explained.values()) + allowance,
    }


# --- calibrate ---


def measure_profile(server, arguments):
    """Profile and seconds of a measurement, read on this thread."""
    settings = {"examples": arguments.examples, "prefix_tokens": arguments.prefix_tokens}
    request = stubs().calibration.CalibrateModelRequest(settings=settings, force=True)
    events = list(server.calibration.CalibrateModel(request, timeout=3600))
    profile = events[-1].complete.profile
    seconds = profile.run.duration_seconds
    profile.ClearField("run")
    return profile.SerializeToString(deterministic=True), seconds


async def calibrate(arguments):
    ids = prompt_ids(arguments.model, 64 * arguments.clients)
    requests = [endless(ids[64 * i : 64 * (i + 1)], 8000) for i in range(arguments.clients)]
    # Settings of its own, so that the server's own calibration would be another one: one small example.
    own = {"calibration": "embedded", "calibration_examples": 1, "calibration_prefix": 64, "calibration_window": 1}
    with server_of(arguments, kv_memory="1GiB", **own) as server:
        channel, stub = aio_stubs(server.address)
        async with channel:
            await until(lambda: server.metrics()["ripplekv_calibration_running"] == 0, 600, "the server's calibration")
            rounds, profiles = [], set()
            for _ in range(arguments.rounds):
                profile, idle_seconds = await asyncio.to_thread(measure_profile, server, arguments)
                profiles.add(profile)
                async with streaming(stub, requests) as answers:
                    begin = now()
                    await asyncio.sleep(arguments.alone_seconds)
                    alone = gaps_between(answers, begin, now())
                    begin = now()
                    profile, seconds = await asyncio.to_thread(measure_profile, server, arguments)
                    during = gaps_between(answers, begin, now())
                    profiles.add(profile)
                rounds.append(
                    {
                        "idle_s": idle_seconds,
                        "under_load_s": seconds,
                        "duration_ratio": seconds / idle_seconds,
                        "gap_alone_median_s": statistics.median(alone),
                        "gap_during_median_s": statistics.median(during),
                        "gap_ratio": statistics.median(during) / statistics.median(alone),
                        "gap_during_p99_s": quantile(during, 0.99),
                    }
                )
                print_round(arguments, rounds[-1])
                await idle(server)
    duration, gap = (statistics.median(r[name] for r in rounds) for name in ("duration_ratio", "gap_ratio"))
    return {
        "rounds": rounds,
        "duration_ratio": duration,
        "gap_ratio": gap,
        "profiles_identical": len(profiles) == 1,
        "line": "a calibration under load takes at most 3 times as long as alone, the clients' median gap grows at most "
        "2 times, all profiles are the same bytes (medians of the rounds)",
        "holds": duration <= 3 and gap <= 2 and len(profiles) == 1,
    }


# --- overload ---


async def overload(arguments):
    request = endless(prompt_ids(arguments.model, arguments.prompt_tokens), arguments.new_tokens)
    with server_of(arguments, max_batch=8, max_queue=8) as server:
        channel, stub = aio_stubs(server.address)
        async with channel:
            rate = await capacity(stub, 8, arguments.capacity_seconds, **request)
            answers = await offer(stub, arguments.times * rate, arguments.seconds, timeout=600, **request)
        after = await idle(server)
    codes = {}
    for answer in answers:
        codes[answer.code.name] = codes.get(answer.code.name, 0) + 1
    refused = [a.ended - a.sent for a in answers if a.code.name == "RESOURCE_EXHAUSTED"]
    complete = all(len(a.ids) == arguments.new_tokens for a in answers if a.ok)
    return {
        "capacity_requests_per_s": rate,
        "offered_requests": len(answers),
        "codes": codes,
        "accepted_of_capacity": codes.get("OK", 0) / (rate * arguments.seconds),
        "refusal_median_s": statistics.median(refused),
        "refusal_p99_s": quantile(refused, 0.99),
        "kv_bytes_afterwards": after["ripplekv_kv_used_bytes"],
        "line": f"at {arguments.times:g} times the capacity, accepted requests finish, the others get RESOURCE_EXHAUSTED "
        "within 50 ms (median), nothing else, and every page is free afterwards",
        "holds": not after["ripplekv_kv_used_bytes"]
        and set(codes) == {"OK", "RESOURCE_EXHAUSTED"}
        and complete
        and statistics.median(refused) < 0.05,
    }


# --- Command line ---

HELP = {
    "clients": "requests at once",
    "prompt_tokens": "of the prompt that is prefilled",
    "new_tokens": "of each output",
    "rounds": "repetitions",
    "alone_seconds": "how long the clients stream undisturbed first",
    "examples": "of the calibration",
    "prefix_tokens": "of the calibration",
    "times": "offered requests, of the capacity",
    "seconds": "how long they are offered",
    "capacity_seconds": "how long the capacity is measured",
}


def print_round(arguments, figures):
    if not arguments.json:
        print("  " + ", ".join(f"{name} {value}" for name, value in rounded(figures).items()), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(function, text, **numbers):
        sub = commands.add_parser(function.__name__, help=text, description=text,
                                  formatter_class=argparse.ArgumentDefaultsHelpFormatter)  # fmt: skip
        model = SOURCE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
        sub.add_argument("--model", type=pathlib.Path, default=model, help="GGUF file")
        sub.add_argument("--build", type=pathlib.Path, default=SOURCE / "build" / "release", help="build directory")
        sub.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of the server")
        sub.add_argument("--retention", type=float, default=0.1, help="of the server's plan, which is uniform")
        for name, value in numbers.items():
            sub.add_argument("--" + name.replace("_", "-"), type=type(value), default=value, help=HELP[name])
        sub.add_argument("--json", action="store_true", help="print all figures as JSON")
        sub.set_defaults(function=function)

    command(stall, "Gaps between the tokens of short requests, alone and while a long prompt is prefilled.",
            clients=3, prompt_tokens=7900, rounds=5, alone_seconds=4.0)  # fmt: skip
    command(batch, "Tokens a second of sequences that decode together, beside one alone.",
            clients=8, prompt_tokens=512, new_tokens=128, rounds=5)  # fmt: skip
    command(memory, "Long prompts together in a --kv-memory of their plans, their output and one full layer, + 5 %%.",
            clients=8, prompt_tokens=7900, new_tokens=64)  # fmt: skip
    command(calibrate, "A calibration alone and while clients stream.",
            clients=4, examples=6, prefix_tokens=512, rounds=3, alone_seconds=4.0)  # fmt: skip
    command(overload, "More requests than the server can take.",
            times=4.0, seconds=60.0, capacity_seconds=10.0, prompt_tokens=64, new_tokens=32)  # fmt: skip
    arguments = parser.parse_args()

    load = os.getloadavg()[0]
    result = asyncio.run(arguments.function(arguments))
    result["load_average_before"] = load
    result["command"] = shlex.join([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]])
    if arguments.json:
        print(json.dumps(rounded(result), indent=2))
    else:
        for name, value in rounded(result).items():
            if name not in ("rounds", "line", "holds"):
                print(f"{name}: {value}")
        print(f"{result['line']}: {'held' if result['holds'] else 'NOT HELD'}")
    sys.exit(0 if result["holds"] else 1)


if __name__ == "__main__":
    main()
