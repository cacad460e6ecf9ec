"""The calls of a soak: each kind is sent, read (or not) and judged by how it may end."""

import asyncio
import collections
import pathlib
import random
import subprocess
import sys

import grpc

from service import stubs
from soak_requests import BURST, Call
from streams import Answer, aio_stubs, note_error, stream

OK, CANCELLED, DEADLINE = grpc.StatusCode.OK, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED
INVALID, EXHAUSTED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED
NOT_FOUND = grpc.StatusCode.NOT_FOUND
NO_PROFILE = TOO_LARGE = grpc.StatusCode.FAILED_PRECONDITION

MAX_CONTEXTS = 12
SLOW_READER_SECONDS = 1.5  # the server's limit
CALIBRATION = {"examples": 2, "prefix_tokens": 128, "window_tokens": 16}  # the server's settings
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


def result(call, ids, logprobs, text, done):
    """What of an answer of Generate must not depend on company, exactly."""
    kl = call.fields.get("output", {}).get("next_token_kl") and (done.next_token_kl, done.next_token_kl_floor)
    return ids, logprobs, text, done.finish_reason, done.compactions, kl


def kept(cache):
    return [layer.positions_kept for layer in cache.layers]


def scores(response):
    return [[(t.token_id, t.logprob, t.greedy) for t in c.tokens] for c in response.continuations]


class Calls:
    """Sends calls to a server; what they ended by, what broke the rules, and a sample of the answers."""

    def __init__(self, server, seed, requests, sample):
        self.server, self.seed, self.requests = server, seed, requests
        self.codes = collections.Counter()
        self.breaches = []
        self.contexts = {}  # id -> fields it was made from
        self.keep = sample / requests / 0.6  # the share of answers to check; about 6 of 10 calls have one
        self.samples = []  # (call, context's fields or None, result, positions kept)
        self.random = random.Random(seed)  # which context, which sample
        self.sent = 0
        self.has_profile = False  # the server's own calibration may still be at work at first

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
        if "ripple" in call.fields.get("kv", {}).get("allocator", {}) and not self.has_profile:
            permitted += (NO_PROFILE,)
        self.note(call, answer.code, (*permitted, EXHAUSTED), answer.message)
        if answer.ok and answer.complete is None:
            self.breach(f"a call of kind {call.kind} ended OK without its completion")

    def maybe_sample(self, call, made_from, got, cache):
        if self.random.random() < self.keep:
            self.samples.append((call, made_from, got, kept(cache)))

    async def unary(self, method, request, timeout=300):
        """Response (or None) and an Answer that says how it went."""
        answer = Answer(code=OK, complete=True)
        try:
            return await method(request, timeout=timeout), answer
        except grpc.aio.AioRpcError as error:
            note_error(answer, error)
            return None, answer

    @staticmethod
    def result_of(call, answer):
        return result(call, answer.ids, answer.logprobs, answer.text, answer.complete)

    def any_context(self):
        return self.random.choice(list(self.contexts)) if self.contexts else None

    # --- A method for each kind of call ---

    async def generate(self, call):
        answer = await stream(self.stub, timeout=call.timeout, **call.fields)
        self.note_answer(call, answer, OK)
        if answer.ok:
            self.maybe_sample(call, None, self.result_of(call, answer), answer.complete.cache)

    async def ask(self, call):
        context = self.any_context()
        if context is None:
            return await self.create_context(Call("create_context", {"token_ids": {"ids": [1, 2, 3] * 40}}))
        made_from = self.contexts[context]
        answer = await stream(self.stub, timeout=call.timeout, context_id=context, **call.fields)
        self.note_over_context(call, context, answer)
        if answer.ok:
            self.maybe_sample(call, made_from, self.result_of(call, answer), answer.complete.cache)

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
        self.note(call, answer.code, (TOO_LARGE,), answer.message)
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
