"""A soak of one server: thousands of random calls, cancelled, refused, killed and answered; then nothing may be left.

What must hold after it: every page is free and nothing runs or waits, there are no more threads and descriptors than
after the warm-up (the first tenth, 250 calls at least), resident memory is within 5 % of what it was then, no call ended
by a status it must not have, and a sample of the answers equals those to the same requests, repeated one by one.
"""

import argparse
import asyncio
import collections
import itertools
import os
import pathlib
import sys
import tempfile
import time

import numpy as np

from service import PLAIN, Server, generate, stubs
from soak_calls import CALIBRATION, SLOW_READER_SECONDS, Calls, kept, result, scores
from soak_requests import KINDS, make_call
from streams import aio_stubs

CLIENTS = 24  # more than run at once, fewer than run and wait
WARM_UP_CALLS = 250  # at least
PERMITTED_GROWTH = 1.05  # of resident memory
TINY_MODELS_MEMORY = {"kv_memory": "2MiB", "context_memory": "512KiB"}  # scarce: requests wait, contexts are evicted
SERVER_OPTIONS = {
    "max_batch": 16,
    "max_queue": 16,
    "retention": 0.3,
    "min_positions": 16,
    "slow_reader_timeout": SLOW_READER_SECONDS,
    "fidelity_sample": 0.05,
    "calibration_examples": CALIBRATION["examples"],
    "calibration_prefix": CALIBRATION["prefix_tokens"],
    "calibration_window": CALIBRATION["window_tokens"],
    "log_level": "warning",
}


class Soak(Calls):
    async def run_each_kind(self):
        """So that the warm-up has seen what is rare, too."""
        seen, calls = set(), (make_call(self.seed, number) for number in itertools.count(self.requests))
        while len(seen) < len(KINDS):
            call = next(calls)
            if call.kind not in seen:
                seen.add(call.kind)
                await getattr(self, call.kind)(call)

    async def run_calls(self, until):
        async def client():
            while self.sent < until:
                call = make_call(self.seed, self.sent)
                self.sent += 1
                await getattr(self, call.kind)(call)

        await asyncio.gather(*(client() for _ in range(CLIENTS)))

    async def settle(self, seconds=60):
        """Nothing runs and no page is in use, once this has deleted the contexts; what the process holds then."""
        for context in list(self.contexts):
            del self.contexts[context]
            await self.unary(self.stub.DeleteContext, stubs().decode.DeleteContextRequest(context_id=context))
        names = ("requests_running", "requests_waiting", "kv_used_bytes", "kv_reserved_bytes", "kv_prefill_bytes",
                 "work_reserved_bytes", "contexts", "context_bytes", "background_jobs")  # fmt: skip
        deadline = time.monotonic() + seconds
        while True:
            metrics = await asyncio.to_thread(self.server.metrics)
            left = {name: metrics[f"ripplekv_{name}"] for name in names if metrics[f"ripplekv_{name}"]}
            if not left:
                break
            if time.monotonic() > deadline:
                self.breach(f"not free {seconds} s after the last call: {left}")
                break
            await asyncio.sleep(0.1)
        free = self.free_pages(metrics)
        await asyncio.sleep(2 * SLOW_READER_SECONDS)  # threads and connections that go by themselves
        pid = self.server.process.pid
        return {
            "free KV pages": free,
            "threads": len(os.listdir(f"/proc/{pid}/task")),
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
            "resident memory": self.server.memory_bytes("VmRSS"),
        }

    @staticmethod
    def free_pages(metrics):
        return int(metrics["ripplekv_kv_free_pages"])

    async def run(self):
        self.channel, self.stub = aio_stubs(self.server.address)
        async with self.channel:
            empty = self.free_pages(await asyncio.to_thread(self.server.metrics))
            begin = time.monotonic()
            await self.run_each_kind()
            await self.run_calls(min(self.requests, max(WARM_UP_CALLS, self.requests // 10)))
            warm = await self.settle()
            if (await asyncio.to_thread(self.server.model)).plan.source != stubs().profile.PLAN_SOURCE_PROFILE:
                self.breach("no calibration has put its profile in force")
            self.has_profile = True
            await self.run_calls(self.requests)
            end = await self.settle()
            self.seconds = time.monotonic() - begin
        self.check_left(empty, warm, end)
        self.warm, self.end = warm, end

    def check_left(self, empty, warm, end):
        for state in (warm, end):
            if state["free KV pages"] != empty:
                self.breach(f"{state['free KV pages']} pages are free, of {empty} before the first call")
        for name in ("threads", "descriptors"):
            if end[name] > warm[name]:
                self.breach(f"{end[name]} {name}, {warm[name]} after the warm-up")
        if end["resident memory"] > PERMITTED_GROWTH * warm["resident memory"]:
            self.breach(f"resident memory is {end['resident memory'] / warm['resident memory']:.3f} times the warm one")

    # --- Solo runs ---

    def check_samples(self):
        """Repeats the sampled requests one by one. Only the plan may have changed since: seen by the positions kept."""
        self.compared = self.other_plan = 0
        for call, made_from, got, positions in self.samples:
            context = ""
            if made_from is not None:
                request = stubs().decode.CreateContextRequest(**made_from)
                context = self.server.decode.CreateContext(request, timeout=300).context.context_id
            if call.kind.startswith("score"):
                request = stubs().decode.ScoreRequest(context_id=context, **call.fields)
                response = self.server.decode.Score(request, timeout=300)
                alone, cache = scores(response), response.cache
            else:
                text, ids, logprobs, done = generate(self.server, context_id=context, **call.fields)
                alone = result(call, ids, [entry.logprob for entry in logprobs], text, done)
                cache = done.cache
            if context:
                request = stubs().decode.DeleteContextRequest(context_id=context)
                self.server.decode.DeleteContext(request, timeout=300)
            if kept(cache) != positions:
                self.other_plan += 1
                continue
            self.compared += 1
            if alone != got:
                self.breach(f"another answer alone than in company: {call}, context {made_from}: {got} != {alone}")
        if self.compared < 0.5 * len(self.samples) or not self.compared:
            self.breach(f"of {len(self.samples)} sampled answers {self.compared} could be compared")

    def summary(self, metrics):
        rows = [("calls", f"{sum(self.codes.values())} in {self.seconds:.0f} s")]
        by_kind = collections.defaultdict(list)
        for (kind, code), count in sorted(self.codes.items()):
            by_kind[kind].append(f"{count} {code}")
        rows += [(kind, ", ".join(counts)) for kind, counts in sorted(by_kind.items())]
        rows += [(name, f"{self.warm[name]} after the warm-up, {self.end[name]} at the end") for name in self.end]
        batch = metrics["ripplekv_decode_batch_size_sum"] / max(1, metrics["ripplekv_decode_batch_size_count"])
        rows += [
            ("mean decode batch", f"{batch:.1f}"),
            ("layers compacted by growth", f"{metrics['ripplekv_compactions_total']:.0f}"),
            ("contexts evicted", f"{metrics['ripplekv_contexts_evicted_total']:.0f}"),
            ("slow readers dropped", f"{metrics['ripplekv_slow_readers_dropped_total']:.0f}"),
            ("answers equal to their solo runs", f"{self.compared} of {len(self.samples)} sampled"),
            ("answers made under another plan", str(self.other_plan)),
            ("breaches", str(len(self.breaches))),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:{width}}  {value}" for name, value in rows)


def soak(program, requests, seed, folder, model=None, sample=200, **options):
    """Breaches, and a table of what happened."""
    from tiny_model import write_tiny_llama

    folder = pathlib.Path(folder)
    if model is None:
        model = write_tiny_llama(folder / "tiny.gguf", context=4096)
        options = {**TINY_MODELS_MEMORY, **options}
    options = {"model": model, "profile_dir": folder / "profiles", **PLAIN, **SERVER_OPTIONS, **options}
    with Server(program, folder / "log", **options) as server:
        run = Soak(server, seed, requests, sample)
        asyncio.run(run.run())
        run.check_samples()
        summary = run.summary(server.metrics())
        if server.process.poll() is not None:
            run.breach(f"the server ended by itself:\n{server.log_text()[-4000:]}")
    if server.process.returncode != 0:
        run.breach(f"the server ended with code {server.process.returncode}")
    return run.breaches, summary


def main():
    parser = argparse.ArgumentParser(prog="scripts/soak.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--requests", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=int(np.random.SeedSequence().entropy % (1 << 31)))
    parser.add_argument("--sample", type=int, default=500, help="about how many answers are repeated alone")
    parser.add_argument("--server", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=pathlib.Path, help="a GGUF file; default: a small one of random weights")
    parser.add_argument("--kv-memory", help="with --model: less than 3,600 positions take in full")
    arguments = parser.parse_args()
    options = {"kv_memory": arguments.kv_memory} if arguments.kv_memory else {}
    print(f"soak: {arguments.requests} requests, --seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ripplekv-soak-") as folder:
        breaches, summary = soak(
            arguments.server, arguments.requests, arguments.seed, folder, arguments.model, arguments.sample, **options
        )
    print(summary)
    if breaches:
        sys.exit(f"soak: {len(breaches)} breaches, the first: {breaches[0]}")
    print("soak: held")


if __name__ == "__main__":
    main()
