"""A soak of one server: thousands of random calls, cancelled, refused, killed and answered; then nothing may be left.

Run by scripts/soak.sh. What must hold after it: every page is free and nothing runs or waits, there are no more threads
and descriptors than after the warm-up (the first tenth, 250 calls at least), resident memory is within 5 % of what it was then, no call ended
by a status it must not have, and a sample of the answers equals those to the same requests, repeated one by one.
"""

import argparse
import asyncio
import collections
import itertools
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

import grpc
import numpy as np

from service import Server, generate, stubs
from soak_requests import BURST, KINDS, Call, make_call
from streams import Answer, aio_stubs, note_error, stream

OK, CANCELLED, DEADLINE = grpc.StatusCode.OK, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED
INVALID, EXHAUSTED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED
NOT_FOUND = grpc.StatusCode.NOT_FOUND

CLIENTS = 24  # more than run at once, fewer than run and wait
MAX_CONTEXTS = 12
WARM_UP_CALLS = 250  # at least
PERMITTED_GROWTH = 1.05  # of resident memory
SLOW_READER_SECONDS = 1.5
CALIBRATION = {"examples": 2, "prefix_tokens": 128, "window_tokens": 16}
SERVER_OPTIONS = {
    "kv_memory": "2MiB",
    "context_memory": "512KiB",
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
# Neither side widens the window of a stream nobody reads.
NARROW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16384)]
VICTIM = """
import sys, threading
import grpc
sys.path[:0] = sys.argv[2:]
from service import stubs
call = stubs().decode_grpc.DecodeServiceStub(grpc.insecure_channel(sys.argv[1])).Generate
request = stubs().decode.GenerateRequest(text="Once", stopping={"max_tokens": 4000, "ignore_eos": True},
                                         kv={"growth_cap": 16})
def read():
    for _ in call(request):
        print("reading", flush=True)
threads = [threading.Thread(target=read) for _ in range(3)]
for thread in threads: thread.start()
"""


def result(answer):
    """What must not depend on company: of a Generate answer, exactly."""
    done = answer.complete
    return answer.ids, answer.logprobs, answer.text, done.finish_reason, done.compactions


def kept(cache):
    return [layer.positions_kept for layer in cache.layers]


def scores(response):
    return [[(t.token_id, t.logprob, t.greedy) for t in c.tokens] for c in response.continuations]


class Soak:
    def __init__(self, server, seed, requests, sample):
        self.server, self.seed, self.requests = server, seed, requests
        self.codes = collections.Counter()
        self.breaches = []
        self.contexts = {}  # id -> fields it was made from
        self.keep = sample / requests / 0.6  # the share of answers to check; about 6 of 10 calls have one
        self.samples = []  # (call, context's fields or None, result, positions kept)
        self.random = random.Random(seed)  # which context, which sample
        self.sent = 0

    def breach(self, text):
        if len(self.breaches) < 50:
            print(f"soak: {text}", file=sys.stderr, flush=True)
        self.breaches.append(text)

    def note(self, call, code, permitted, message=""):
        self.codes[call.kind, code.name] += 1
        if code not in permitted:
            self.breach(f"a call of kind {call.kind} ended {code.name}: {message}")

    def note_answer(self, call, answer, *permitted):
        """RESOURCE_EXHAUSTED with RetryInfo is an answer that every call may get."""
        if answer.code == EXHAUSTED and not answer.retry and EXHAUSTED not in permitted:
            self.breach(f"a call of kind {call.kind} was refused without RetryInfo: {answer.message}")
        self.note(call, answer.code, (*permitted, EXHAUSTED), answer.message)
        if answer.ok and answer.complete is None:
            self.breach(f"a call of kind {call.kind} ended OK without its completion")

    def maybe_sample(self, call, made_from, got, cache):
        if self.random.random() < self.keep:
            self.samples.append((call, made_from, got, kept(cache)))

    async def unary(self, method, request, timeout=60):
        """Response (or None) and an Answer that says how it went."""
        answer = Answer(code=OK, complete=True)
        try:
            return await method(request, timeout=timeout), answer
        except grpc.aio.AioRpcError as error:
            note_error(answer, error)
            return None, answer

    def any_context(self):
        return self.random.choice(list(self.contexts)) if self.contexts else None

    # --- One method a kind of call ---

    async def generate(self, call):
        answer = await stream(self.stub, timeout=call.timeout, **call.fields)
        self.note_answer(call, answer, OK)
        if answer.ok:
            self.maybe_sample(call, None, result(answer), answer.complete.cache)

    async def ask(self, call):
        context = self.any_context()
        if context is None:
            return await self.create_context(Call("create_context", {"token_ids": {"ids": [1, 2, 3] * 40}}))
        made_from = self.contexts[context]
        answer = await stream(self.stub, timeout=call.timeout, context_id=context, **call.fields)
        self.note_over_context(call, context, answer)
        if answer.ok:
            self.maybe_sample(call, made_from, result(answer), answer.complete.cache)

    def note_over_context(self, call, context, answer):
        """Contexts go when they are deleted, and when others need their memory."""
        self.note_answer(call, answer, OK, NOT_FOUND)
        if answer.code == NOT_FOUND:
            self.contexts.pop(context, None)

    async def score(self, call, context=None):
        fields = dict(call.fields, context_id=context) if context else call.fields
        made_from = self.contexts.get(context)
        response, answer = await self.unary(self.stub.Score, stubs().decode.ScoreRequest(**fields))
        if context:
            self.note_over_context(call, context, answer)
        else:
            self.note_answer(call, answer, OK)
        if response is not None:
            self.maybe_sample(call, made_from, scores(response), response.cache)

    async def score_ask(self, call):
        await self.score(call, self.any_context())

    async def create_context(self, call):
        if len(self.contexts) >= MAX_CONTEXTS:
            await self.delete_context(Call("delete_context", {}))
        request = stubs().decode.CreateContextRequest(**call.fields)
        response, answer = await self.unary(self.stub.CreateContext, request)
        self.note_answer(call, answer, OK)
        if response is not None:
            self.contexts[response.context.context_id] = call.fields

    async def delete_context(self, call):
        context = self.any_context()
        if context is None:
            return
        del self.contexts[context]
        request = stubs().decode.DeleteContextRequest(context_id=context)
        _, answer = await self.unary(self.stub.DeleteContext, request)
        self.note_answer(call, answer, OK, NOT_FOUND)

    async def cancel(self, call):
        answer = await stream(
            self.stub, timeout=call.timeout, cancel_after_tokens=call.cancel_after_tokens, **call.fields
        )
        self.note_answer(call, answer, OK, CANCELLED)

    async def deadline(self, call):
        answer = await stream(self.stub, timeout=call.timeout, **call.fields)
        self.note_answer(call, answer, OK, DEADLINE)

    async def bad_input(self, call):
        answer = await stream(self.stub, timeout=call.timeout, **call.fields)
        self.note(call, answer.code, (INVALID,), answer.message)

    async def too_large(self, call):
        answer = await stream(self.stub, timeout=call.timeout, **call.fields)
        self.note(call, answer.code, (EXHAUSTED,), answer.message)
        if answer.retry:
            self.breach(f"waiting does not make it fit, yet: {answer.message}")

    async def burst(self, call):
        answers = await asyncio.gather(*(stream(self.stub, timeout=call.timeout, **call.fields) for _ in range(BURST)))
        for answer in answers:
            self.note_answer(call, answer, OK)
        if len({(tuple(a.ids), tuple(a.logprobs)) for a in answers if a.ok}) > 1:
            self.breach(f"the same request, sent {BURST} times at once, got different answers: {call.fields}")
        self.sent += BURST - 1

    async def slow_reader(self, call):
        channel, stub = aio_stubs(self.server.address, NARROW)
        reader = stub.Generate(stubs().decode.GenerateRequest(**call.fields), timeout=call.timeout)
        await asyncio.sleep(2 * SLOW_READER_SECONDS)
        answer = Answer(code=OK, complete=True)
        try:
            async for _ in reader:
                pass
        except grpc.aio.AioRpcError as error:
            note_error(answer, error)
        await channel.close()
        self.note_answer(call, answer, OK, CANCELLED)

    async def killed_client(self, call):
        """A process with three streams that is killed while they run."""
        here = str(pathlib.Path(__file__).parent)
        victim = await asyncio.create_subprocess_exec(
            sys.executable, "-c", VICTIM, self.server.address, here, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        line = await victim.stdout.readline()
        if victim.returncode is None:
            victim.kill()
        await victim.communicate()
        self.codes[call.kind, "killed while reading" if line else "refused"] += 1

    async def calibration(self, call):
        """Measures the server's own settings again, or deletes their profile: the plan in force must outlive both."""
        calibrate = stubs().calibration_grpc.CalibrationServiceStub(self.channel)
        calibration = stubs().calibration
        if self.random.random() < 0.4:
            request = calibration.ListProfilesRequest()
            listed, answer = await self.unary(calibrate.ListProfiles, request)
            for profile in listed.profiles if listed else ():
                request = calibration.DeleteProfileRequest(profile_id=profile.profile_id)
                _, answer = await self.unary(calibrate.DeleteProfile, request)
                self.note_answer(call, answer, OK, NOT_FOUND)
            return
        settings = dict(CALIBRATION, seed=self.random.randrange(2))
        answer = Answer(code=OK, complete=True)
        try:
            request = calibration.CalibrateModelRequest(settings=settings, force=self.random.random() < 0.7)
            async for _ in calibrate.CalibrateModel(request, timeout=call.timeout):
                pass
        except grpc.aio.AioRpcError as error:
            note_error(answer, error)
        self.note_answer(call, answer, OK)

    # --- The run ---

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
                context = self.server.decode.CreateContext(request, timeout=60).context.context_id
            if call.kind.startswith("score"):
                request = stubs().decode.ScoreRequest(context_id=context, **call.fields)
                response = self.server.decode.Score(request, timeout=60)
                alone, cache = scores(response), response.cache
            else:
                text, ids, logprobs, done = generate(self.server, context_id=context, **call.fields)
                logprobs = [entry.logprob for entry in logprobs]
                alone, cache = (ids, logprobs, text, done.finish_reason, done.compactions), done.cache
            if context:
                request = stubs().decode.DeleteContextRequest(context_id=context)
                self.server.decode.DeleteContext(request, timeout=60)
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
    options = {"model": model, "profile_dir": folder / "profiles", **SERVER_OPTIONS, **options}
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
