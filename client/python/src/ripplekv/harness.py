"""The three questions that evaluation harnesses ask of a language model, over the API."""

from __future__ import annotations

import concurrent.futures
import functools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from .client import Client, call_started
from .errors import ResourceExhausted
from .requests import Kv

MOST_STOP_STRINGS = 16
T = TypeVar("T")


class _Run:
    """Requests that are asked together: all of their calls in flight can be cancelled."""

    def __init__(self, client: Client) -> None:
        self._timeout = client.timeout
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._calls: set[Any] = set()

    def stop(self) -> None:
        self._stopped.set()
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.cancel()

    def _add(self, call: Any) -> None:
        with self._lock:
            self._calls.add(call)
        call.add_done_callback(self._remove)
        if self._stopped.is_set():
            call.cancel()

    def _remove(self, call: Any) -> None:
        with self._lock:
            self._calls.discard(call)

    def job(self, job: Callable[[float | None], T]) -> T:
        """What `job` returns, which gets the seconds it may take. Where the server has no room now it is asked again, after
        the time that it names, while the client's timeout lasts."""
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        token = call_started.set(self._add)
        try:
            while True:
                try:
                    return job(None if deadline is None else max(0.0, deadline - time.monotonic()))
                except ResourceExhausted as error:
                    delay = error.retry_delay_seconds
                    if delay is None or (deadline is not None and time.monotonic() + delay >= deadline):
                        raise
                    if self._stopped.wait(delay):
                        raise
        finally:
            call_started.reset(token)


class Harness:
    """Log-likelihoods of continuations and of whole texts, and greedy or sampled text until a stop string, many at once.

    `kv` as in Client. `max_length`: tokens of a prompt and what follows it, at most the model's context; longer prompts lose
    their beginning. `concurrency`: requests at a time. `done` of the methods is called with the number of requests answered.

    A request that the server has no room for now is asked again, as long as the client's timeout lasts. What fails or is
    interrupted cancels the requests in flight; so does `close`, or leaving the `with` block, in whatever thread they are
    waited for. The client stays the caller's.
    """

    def __init__(
        self,
        client: Client,
        *,
        kv: Kv | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        concurrency: int = 8,
    ) -> None:
        self.client = client
        self.kv = kv
        self.model = client.wait_until_serving()
        context_length = self.model.model.context_length
        self.max_length = context_length if max_length is None else max_length
        if not 2 <= self.max_length <= context_length:
            raise ValueError(f"max_length is {max_length}: must be 2 to {context_length}, the model's context length")
        self.max_gen_toks = max_gen_toks
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}: must be at least 1")
        self.concurrency = concurrency
        self._lock = threading.Lock()
        self._runs: set[_Run] = set()
        self._closed = False
        self._encode = functools.lru_cache(maxsize=4096)(lambda text: tuple(client.tokenize(text)) if text else ())
        a, b = self._encode("a"), self._encode("b")
        # What the tokenizer puts before every text (BOS).
        self._lead = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), 0)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            runs = list(self._runs)
        for run in runs:
            run.stop()

    def __enter__(self) -> Harness:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def without_lead(self, ids: Sequence[int]) -> list[int]:
        """Tokens without what encode puts before every text."""
        lead = list(self._encode("a")[: self._lead])
        return list(ids[self._lead :] if list(ids[: self._lead]) == lead else ids)

    def encode(self, text: str) -> list[int]:
        return list(self._encode(text))

    def encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Tokens of both, cut where the context's own tokens end: what merges over the seam belongs to the continuation.
        Spaces at the context's end go to the continuation."""
        stripped = context.rstrip()
        continuation, context = context[len(stripped) :] + continuation, stripped
        if not context:
            return [], self.encode(continuation)[self._lead :]
        whole, head = self.encode(context + continuation), self.encode(context)
        return head, whole[len(head) :]

    def _run(
        self, jobs: Iterable[tuple[int, Callable[[float | None], Any]]], done: Callable[[int], object]
    ) -> list[Any]:
        """Results in the jobs' order; each counts for so many requests, and gets the seconds that it may take."""
        run = _Run(self.client)
        with self._lock:
            if self._closed:
                raise ValueError("the harness is closed")
            self._runs.add(run)
        pool = concurrent.futures.ThreadPoolExecutor(self.concurrency, "ripplekv-harness")
        try:
            running = [(count, pool.submit(run.job, job)) for count, job in jobs]
            counts = {future: count for count, future in running}
            for future in concurrent.futures.as_completed(counts):
                future.result()
                done(counts[future])
            return [future.result() for _, future in running]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            run.stop()
            raise
        finally:
            pool.shutdown()
            with self._lock:
                self._runs.discard(run)

    def loglikelihood_tokens(
        self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], done: Callable[[int], object] = lambda n: None
    ) -> list[tuple[float, bool]]:
        """(log-likelihood, greedy decoding would write it) of (context, continuation). An empty context is the model's BOS
        token. Continuations of one context are scored in one call."""
        groups: dict[tuple[int, ...], list[int]] = {}
        for i, (context, continuation) in enumerate(pairs):
            room = self.max_length - len(continuation)
            if not continuation or room < 1:
                raise ValueError(
                    f"a continuation has {len(continuation)} tokens: must be 1 to {self.max_length - 1}, one less than max_length"
                )
            groups.setdefault(tuple(context)[-room:], []).append(i)
        most = self.model.limits.max_continuations
        parts = [(c, wanted[i : i + most]) for c, wanted in groups.items() for i in range(0, len(wanted), most)]

        def score(context: tuple[int, ...], wanted: list[int], timeout: float | None) -> Any:
            prompt = list(context) or None
            return self.client.score(prompt, [list(pairs[i][1]) for i in wanted], kv=self.kv, timeout=timeout)

        answers = self._run(((len(w), functools.partial(score, c, w)) for c, w in parts), done)
        found: dict[int, tuple[float, bool]] = {}
        for (_, wanted), answer in zip(parts, answers, strict=True):
            for i, scored in zip(wanted, answer.continuations, strict=True):
                found[i] = (scored.logprob, scored.greedy)
        return [found[i] for i in range(len(pairs))]

    def loglikelihood(
        self, pairs: Sequence[tuple[str, str]], done: Callable[[int], object] = lambda n: None
    ) -> list[tuple[float, bool]]:
        return self.loglikelihood_tokens([self.encode_pair(*pair) for pair in pairs], done)

    def loglikelihood_rolling(
        self, texts: Sequence[str], done: Callable[[int], object] = lambda n: None
    ) -> list[float]:
        """Log-likelihoods of whole texts after BOS. A text longer than max_length is cut into windows that overlap by one
        token, so that every token is predicted once."""
        windows: list[tuple[list[int], list[int]]] = []
        owners: list[int] = []
        size = self.max_length - 1
        for owner, text in enumerate(texts):
            ids = self.encode(text)[self._lead :]
            for start in range(0, len(ids), size):
                windows.append((ids[start - 1 : start] if start else [], ids[start : start + size]))
                owners.append(owner)
        totals = [0.0] * len(texts)
        for owner, (logprob, _) in zip(owners, self.loglikelihood_tokens(windows), strict=True):
            totals[owner] += logprob
        done(len(texts))
        return totals

    def generate_until(
        self, requests: Sequence[tuple[str, Mapping[str, Any]]], done: Callable[[int], object] = lambda n: None
    ) -> list[str]:
        """Text up to the first stop string, of (context, settings): until (a string or several), max_gen_toks, do_sample,
        temperature, top_p, top_k, seed."""
        return self._run(((1, functools.partial(self._generate, *request)) for request in requests), done)

    def _generate(self, context: str, settings: Mapping[str, Any], timeout: float | None) -> str:
        settings = dict(settings)
        until = settings.pop("until", None) or []
        until = [until] if isinstance(until, str) else [stop for stop in until if stop]
        lengths = [settings.pop(name, None) for name in ("max_gen_toks", "max_new_tokens", "max_tokens")]
        max_tokens = int(next((n for n in lengths if n is not None), self.max_gen_toks))
        if max_tokens >= self.max_length:
            raise ValueError(f"max_gen_toks is {max_tokens}: must be less than max_length, {self.max_length}")
        options: dict[str, Any] = {name: settings.pop(name) for name in ("top_p", "top_k", "seed") if name in settings}
        temperature = settings.pop("temperature", None)
        sample = settings.pop("do_sample", bool(temperature))
        options["temperature"] = (1.0 if temperature is None else float(temperature)) if sample else 0.0
        if settings:
            raise ValueError(f"generation settings that are not known: {', '.join(sorted(settings))}")
        ids = self.encode(context)[-(self.max_length - max_tokens) :]
        if not ids:
            raise ValueError("a context is empty: there is nothing to go on from")
        text = self.client.generate(
            ids, kv=self.kv, max_tokens=max_tokens, stop_strings=until[:MOST_STOP_STRINGS], timeout=timeout, **options
        ).text
        for stop in until:
            text = text.split(stop)[0]
        return text
