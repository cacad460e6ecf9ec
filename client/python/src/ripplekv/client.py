"""Calls of both services at one address."""

from __future__ import annotations

import contextvars
import math
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Unpack

import grpc

from .credentials import Path, channel_credentials, token_metadata
from .errors import Cancelled, RippleKVError, Unavailable, error_of
from .requests import (
    Continuation,
    GenerateOptions,
    Kv,
    Prompt,
    continuation_of,
    generate_request,
    kv_fields,
    prompt_fields,
    several,
)
from .results import Generation, GenerationStream
from .v1 import calibration_pb2, calibration_pb2_grpc, decode_pb2, decode_pb2_grpc, profile_pb2

_CHANNEL_OPTIONS = (
    # A prompt's tokens or a list of profiles may be long, and the user chose the server.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Calls take turns at the addresses that a name has.
    ("grpc.lb_policy_name", "round_robin"),
    # An http_proxy in the environment is meant for the web, not for a server named by address.
    ("grpc.enable_http_proxy", 0),
    # A server that is just starting is found soon after it listens.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A server that vanished without closing the connection is noticed; one on a machine that is busy beyond its means gets
    # the time to say that it is there.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 60_000),
)

_MAX_SECONDS = 1e9

# What is told of each call that this thread starts, so that another one can cancel it.
call_started: contextvars.ContextVar[Callable[[Any], object] | None] = contextvars.ContextVar(
    "call_started", default=None
)


def _context_key(request: Any) -> str:
    """What a proxy chooses the replica of a context by: the part of the context's id that its maker chose, or the whole of
    another id."""
    if isinstance(request, decode_pb2.CreateContextRequest):
        return secrets.token_hex(8)
    context_id: str = getattr(request, "context_id", "")
    # What cannot stand in a header is no context's id: the server says so.
    fits = context_id.isascii() and context_id.isprintable() and " " not in context_id
    return (context_id.rpartition(".")[0] or context_id) if fits else ""


def _seconds(timeout: float | None) -> float | None:
    """What grpc is told: beyond its clock a deadline would have passed already, so that is none."""
    if timeout is not None and math.isnan(timeout):
        raise ValueError("timeout is not a number: must be seconds, or None for as long as it takes")
    return None if timeout is None or timeout > _MAX_SECONDS else timeout


def _checked_id(request_id: str) -> str:
    if len(request_id) > 128 or not re.fullmatch("[!-~]*", request_id):
        raise ValueError(f"request_id is {request_id[:128]!r}: must be 1 to 128 printable ASCII characters without spaces")
    return request_id


class Client:
    """Blocking calls, safe from several threads at once. Connects on the first call, without HTTP proxies, and again after the
    connection was lost.

    In plain text, or by TLS with `tls` (the CAs that grpc trusts by itself) or any of `tls_ca`, `tls_certificate` and
    `tls_key`: paths of PEM files with the CAs to trust and what to show to a server that asks for a certificate. `token` is
    sent with every call; without TLS to this machine only.

    Where `address` is a target of several addresses (dns:///NAME:PORT) calls take turns at them; contexts are on one server,
    which a proxy finds by the header x-ripplekv-context.

    A failed call raises RippleKVError or one of its subclasses; a wrong kind of argument raises TypeError or ValueError.
    `timeout` (seconds; None: as long as it takes) and `wait_for_ready` (wait until the server can be reached rather than
    fail at once) hold for every call; a call's own `timeout` goes before. Prompts are raw text, chats or token ids; `kv` is a
    KvParams or the same as a dictionary.
    """

    def __init__(
        self,
        address: str = "127.0.0.1:50051",
        *,
        timeout: float | None = None,
        wait_for_ready: bool = False,
        tls: bool = False,
        tls_ca: Path | None = None,
        tls_certificate: Path | None = None,
        tls_key: Path | None = None,
        token: str | None = None,
    ) -> None:
        self.address = address
        self.timeout = timeout
        self.wait_for_ready = wait_for_ready
        credentials = channel_credentials(tls, tls_ca, tls_certificate, tls_key)
        self._tls = credentials is not None
        self._metadata = token_metadata(token, address, self._tls)
        if credentials is None:
            self._channel = grpc.insecure_channel(address, options=_CHANNEL_OPTIONS)
        else:
            self._channel = grpc.secure_channel(address, credentials, options=_CHANNEL_OPTIONS)
        self._decode = decode_pb2_grpc.DecodeServiceStub(self._channel)
        self._calibration = calibration_pb2_grpc.CalibrationServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _error(self, error: grpc.RpcError) -> RippleKVError:
        return error_of(error, self.address, self._tls)

    def _call(self, method: Any, request: Any, timeout: float | None, request_id: str = "") -> Any:
        call = None
        try:
            call = self._started(method.future(request, **self._how(request, timeout, request_id)))
            return call.result()
        except grpc.FutureCancelledError:
            raise Cancelled(grpc.StatusCode.CANCELLED, "the call was cancelled by this client") from None
        except grpc.RpcError as error:
            raise self._error(error) from None
        finally:
            if call is not None:
                call.cancel()  # where the wait was interrupted; nothing to a call that has ended

    def _started(self, call: Any) -> Any:
        told = call_started.get()
        if told is not None:
            told(call)
        return call

    def _how(self, request: Any, timeout: float | None, request_id: str = "") -> dict[str, Any]:
        headers = {"x-request-id": _checked_id(request_id), "x-ripplekv-context": _context_key(request)}
        return {
            "timeout": _seconds(self.timeout if timeout is None else timeout),
            "wait_for_ready": self.wait_for_ready,
            "metadata": self._metadata + tuple((key, value) for key, value in headers.items() if value),
        }

    # --- generating and scoring ---

    def stream(
        self,
        prompt: Prompt,
        *,
        context_id: str = "",
        kv: Kv | None = None,
        request_id: str = "",
        timeout: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> GenerationStream:
        """A continuation, chunk by chunk."""
        request = generate_request(prompt, context_id, kv, options)
        call = self._started(self._decode.Generate(request, **self._how(request, timeout, request_id)))
        return GenerationStream(call, self._error)

    def generate(
        self,
        prompt: Prompt,
        *,
        context_id: str = "",
        kv: Kv | None = None,
        request_id: str = "",
        timeout: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """A continuation as a whole."""
        arguments: dict[str, Any] = {"context_id": context_id, "kv": kv, "request_id": request_id, "timeout": timeout}
        return self.stream(prompt, **arguments, **options).whole()

    def score(
        self,
        prompt: Prompt | None,
        continuations: Sequence[Continuation],
        *,
        context_id: str = "",
        kv: Kv | None = None,
        reference: bool = False,
        request_id: str = "",
        timeout: float | None = None,
    ) -> decode_pb2.ScoreResponse:
        """Log-likelihoods of continuations, the prompt being prefilled once for all. With `reference` every token says how
        far its distribution is from the full cache's."""
        request = decode_pb2.ScoreRequest(
            context_id=context_id,
            continuations=[continuation_of(c) for c in several("continuations", continuations)],
            **prompt_fields(prompt),
            **kv_fields(kv),
            reference=reference,
        )
        return self._call(self._decode.Score, request, timeout, request_id)

    # --- contexts ---

    def create_context(
        self, prompt: Prompt, *, kv: Kv | None = None, request_id: str = "", timeout: float | None = None
    ) -> decode_pb2.Context:
        """Compresses a prompt and keeps its cache; requests name it by its `context_id`."""
        request = decode_pb2.CreateContextRequest(**prompt_fields(prompt), **kv_fields(kv))
        return self._call(self._decode.CreateContext, request, timeout, request_id).context

    def context(self, context_id: str, *, timeout: float | None = None) -> decode_pb2.Context:
        return self._call(self._decode.GetContext, decode_pb2.GetContextRequest(context_id=context_id), timeout).context

    def contexts(self, *, timeout: float | None = None) -> Iterator[decode_pb2.Context]:
        """All of the caller's contexts, in the order of their ids."""
        return self._pages(self._decode.ListContexts, decode_pb2.ListContextsRequest(), "contexts", timeout)

    def delete_context(self, context_id: str, *, timeout: float | None = None) -> None:
        self._call(self._decode.DeleteContext, decode_pb2.DeleteContextRequest(context_id=context_id), timeout)

    # --- the model ---

    def model(self, *, timeout: float | None = None) -> decode_pb2.GetModelResponse:
        """Architecture, limits, fingerprint, the plan in force, versions."""
        return self._call(self._decode.GetModel, decode_pb2.GetModelRequest(), timeout)

    def tokenize(self, prompt: Prompt, *, timeout: float | None = None) -> list[int]:
        """The token ids that generate would use."""
        request = decode_pb2.TokenizeRequest(**prompt_fields(prompt))
        return list(self._call(self._decode.Tokenize, request, timeout).token_ids)

    def detokenize(
        self, token_ids: Sequence[int], *, skip_special_tokens: bool = False, timeout: float | None = None
    ) -> str:
        request = decode_pb2.DetokenizeRequest(
            token_ids=several("token_ids", token_ids), skip_special_tokens=skip_special_tokens
        )
        return self._call(self._decode.Detokenize, request, timeout).text

    def wait_until_serving(self, seconds: float = 60) -> decode_pb2.GetModelResponse:
        """Waits for a server that starts or loads its model. Raises what it said last."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return self.model(timeout=max(0.1, deadline - time.monotonic()))
            except Unavailable:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(0.1)

    # --- calibration ---

    def calibrate(
        self,
        settings: profile_pb2.CalibrationSettings | Mapping[str, Any] | None = None,
        *,
        texts: Sequence[str] | None = None,
        corpus: str = "",
        force: bool = False,
        detach: bool = False,
        on_event: Callable[[calibration_pb2.CalibrateModelResponse], None] | None = None,
        request_id: str = "",
        timeout: float | None = None,
    ) -> calibration_pb2.CalibrationComplete:
        """Measures a profile, or gets the stored one of the same settings and texts. `on_event` sees `started` and every
        `progress`; what it raises ends the call, and the measurement with it unless others wait for it. `corpus` names
        texts of the server; `texts` are given here; without both the server's own are measured."""
        if texts is not None and corpus:
            raise ValueError("texts and corpus are both given: choose one")
        request = calibration_pb2.CalibrateModelRequest(force=force, detach=detach)
        if settings is not None:
            plain = settings if isinstance(settings, profile_pb2.CalibrationSettings) else profile_pb2.CalibrationSettings(**settings)  # fmt: skip
            request.settings.CopyFrom(plain)
        if texts is not None:
            request.corpus.texts.texts.extend(several("texts", texts))
        elif corpus:
            request.corpus.name = corpus
        call = self._started(self._calibration.CalibrateModel(request, **self._how(request, timeout, request_id)))
        complete = None
        try:
            for response in call:
                if response.HasField("complete"):
                    complete = response.complete
                elif on_event is not None:
                    on_event(response)
        except grpc.RpcError as error:
            raise self._error(error) from None
        finally:
            call.cancel()
        if complete is None:
            raise RippleKVError(grpc.StatusCode.INTERNAL, "the server ended its stream without 'complete'")
        return complete

    def calibrations(self, *, timeout: float | None = None) -> Iterator[calibration_pb2.Calibration]:
        """The measurement that runs, then those that ended, the newest first."""
        request = calibration_pb2.ListCalibrationsRequest()
        return self._pages(self._calibration.ListCalibrations, request, "calibrations", timeout)

    def cancel_calibration(self, job_id: str, *, timeout: float | None = None) -> calibration_pb2.Calibration:
        request = calibration_pb2.CancelCalibrationRequest(job_id=job_id)
        return self._call(self._calibration.CancelCalibration, request, timeout).calibration

    def profile(self, profile_id: str = "", *, timeout: float | None = None) -> profile_pb2.Profile:
        """A stored profile; without an id that of the server's configured settings."""
        request = calibration_pb2.GetProfileRequest(profile_id=profile_id)
        return self._call(self._calibration.GetProfile, request, timeout).profile

    def profiles(self, *, timeout: float | None = None) -> Iterator[profile_pb2.Profile]:
        """All stored profiles, by id."""
        request = calibration_pb2.ListProfilesRequest()
        return self._pages(self._calibration.ListProfiles, request, "profiles", timeout)

    def delete_profile(self, profile_id: str, *, timeout: float | None = None) -> None:
        request = calibration_pb2.DeleteProfileRequest(profile_id=profile_id)
        self._call(self._calibration.DeleteProfile, request, timeout)

    def plan(
        self, prompt_tokens: int, *, timeout: float | None = None, **fields: Any
    ) -> calibration_pb2.PlanBudgetsResponse:
        """What each layer would keep of a prompt. `fields` are the other fields of PlanBudgetsRequest: profile_id or inline
        ({"mean_kl": [...]}), allocator, size, min_positions, and memory_bytes and output_tokens, which ask how many such
        requests fit."""
        request = calibration_pb2.PlanBudgetsRequest(prompt_tokens=prompt_tokens, **fields)
        return self._call(self._calibration.PlanBudgets, request, timeout)

    def _pages(self, method: Any, request: Any, field: str, timeout: float | None) -> Iterator[Any]:
        while True:
            page = self._call(method, request, timeout)
            yield from getattr(page, field)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token
