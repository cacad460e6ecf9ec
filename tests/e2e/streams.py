"""Many clients of one server in one process: calls of grpc.aio with the time at which each token came."""

import asyncio
import dataclasses
import math
import time

import grpc

from service import error_details, stubs


@dataclasses.dataclass
class Answer:
    """A Generate call: what has come so far, and how it ended. Times are time.monotonic()'s."""

    sent: float = 0
    ended: float = 0
    code: grpc.StatusCode = None
    message: str = ""
    retry: bool = False  # a refusal that waiting helps against
    text: str = ""
    ids: list = dataclasses.field(default_factory=list)
    logprobs: list = dataclasses.field(default_factory=list)
    times: list = dataclasses.field(default_factory=list)  # one a token
    complete: object = None

    @property
    def ok(self):
        return self.code == grpc.StatusCode.OK

    def gaps(self, begin=-math.inf, end=math.inf):
        """Seconds between two tokens, of those that came within [begin, end] and had one before."""
        return [b - a for a, b in zip(self.times, self.times[1:]) if begin <= b <= end]


def note_error(answer, error):
    answer.code, answer.message = error.code(), error.details()
    answer.retry = "RetryInfo" in error_details(error)


def aio_stubs(address, options=()):
    """Channel and DecodeService stub for this thread's event loop."""
    channel = grpc.aio.insecure_channel(address, options=options)
    return channel, stubs().decode_grpc.DecodeServiceStub(channel)


async def stream(stub, answer=None, *, timeout=None, cancel_after_tokens=None, **fields):
    """One Generate call, read to its end or cancelled after so many tokens. Never raises an RpcError."""
    answer = answer or Answer()
    request = stubs().decode.GenerateRequest(**fields)
    answer.sent = time.monotonic()
    call = stub.Generate(request, timeout=timeout)
    try:
        if cancel_after_tokens == 0:
            call.cancel()
        async for response in call:
            if response.HasField("complete"):
                answer.complete = response.complete
                continue
            chunk = response.chunk
            answer.text += chunk.text
            answer.ids += chunk.token_ids
            answer.logprobs += [entry.logprob for entry in chunk.logprobs]
            answer.times += [time.monotonic()] * len(chunk.token_ids)
            if cancel_after_tokens is not None and len(answer.ids) >= cancel_after_tokens:
                call.cancel()
        answer.code = await call.code()
    except grpc.aio.AioRpcError as error:
        note_error(answer, error)
    except asyncio.CancelledError:
        if not call.cancelled() or asyncio.current_task().cancelling():
            call.cancel()
            raise
        answer.code = grpc.StatusCode.CANCELLED
    answer.ended = time.monotonic()
    return answer


async def until(condition, seconds=120, what="the condition"):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        await asyncio.sleep(0.01)


async def capacity(stub, at_once, seconds, **fields):
    """Requests a second that `at_once` clients get answered, each sending the next one when it has its answer."""
    end = time.monotonic() + seconds
    finished = []

    async def client():
        while time.monotonic() < end:
            answer = await stream(stub, **fields)
            assert answer.ok, f"{answer.code}: {answer.message}"
            finished.append(answer)

    begin = time.monotonic()
    await asyncio.gather(*(client() for _ in range(at_once)))
    return len(finished) / (time.monotonic() - begin)


async def offer(stub, rate, seconds, timeout=120, **fields):
    """Requests at even intervals, `rate` a second, whatever becomes of them: all answers."""
    begin = time.monotonic()
    tasks = []
    while (due := begin + len(tasks) / rate) < begin + seconds:
        await asyncio.sleep(max(0, due - time.monotonic()))
        tasks.append(asyncio.create_task(stream(stub, timeout=timeout, **fields)))
    return await asyncio.gather(*tasks)
