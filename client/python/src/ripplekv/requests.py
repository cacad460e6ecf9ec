"""Requests from plain Python values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from .v1 import decode_pb2

# Raw text, a chat ({"role": "user", "content": "..."} each) or token ids.
Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
# A text or token ids.
Continuation = str | Sequence[int]
# A message of the API, or the same as a dictionary: {"size": {"retention": 0.2}, "allocator": {"uniform": {}}}.
Kv = decode_pb2.KvParams | Mapping[str, Any]

_ROLES = {"system": decode_pb2.ROLE_SYSTEM, "user": decode_pb2.ROLE_USER, "assistant": decode_pb2.ROLE_ASSISTANT}


class GenerateOptions(TypedDict, total=False):
    """Named as in SamplingParams, StoppingParams and OutputParams of decode.proto, where ranges and defaults stand."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    logit_bias: Mapping[int, float]
    max_tokens: int
    min_tokens: int
    stop_strings: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    logprobs: int
    next_token_kl: bool


_GROUPS = {
    "sampling": {field.name for field in decode_pb2.SamplingParams.DESCRIPTOR.fields},
    "stopping": {field.name for field in decode_pb2.StoppingParams.DESCRIPTOR.fields},
    "output": {field.name for field in decode_pb2.OutputParams.DESCRIPTOR.fields},
}
# Options that are lists.
_LISTS = ("stop_strings", "stop_token_ids")


def several(name: str, values: Any) -> Any:
    """Values as given. A text or bytes are one value, though Python would take their characters for a sequence."""
    if isinstance(values, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"{name} is of type {type(values).__name__}: must be a list")
    return values


def prompt_fields(prompt: Prompt | None) -> dict[str, Any]:
    """The field of a request's oneof `prompt`."""
    if prompt is None:
        return {}
    if isinstance(prompt, str):
        return {"text": prompt}
    if isinstance(prompt, (bytes, bytearray, memoryview)):
        raise TypeError(f"a prompt is of type {type(prompt).__name__}: must be text, a chat or token ids")
    items: list[Any] = list(prompt)
    if items and isinstance(items[0], Mapping):
        return {"chat": decode_pb2.ChatPrompt(messages=[_message(item) for item in items])}
    return {"token_ids": decode_pb2.TokenIdsPrompt(ids=items)}


def _message(message: Any) -> decode_pb2.ChatMessage:
    if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
        raise ValueError(f"{message!r} is no message of a chat: it must have 'role' and 'content' and nothing else")
    if message["role"] not in _ROLES:
        raise ValueError(f"role is {message['role']!r}: must be one of {', '.join(_ROLES)}")
    return decode_pb2.ChatMessage(role=_ROLES[message["role"]], content=message["content"])


def continuation_of(continuation: Continuation) -> decode_pb2.Continuation:
    if isinstance(continuation, str):
        return decode_pb2.Continuation(text=continuation)
    if isinstance(continuation, (bytes, bytearray, memoryview)):
        raise TypeError(f"a continuation is of type {type(continuation).__name__}: must be text or token ids")
    return decode_pb2.Continuation(token_ids=decode_pb2.TokenIdsPrompt(ids=continuation))


def kv_fields(kv: Kv | None) -> dict[str, Any]:
    if kv is None:
        return {}
    return {"kv": kv if isinstance(kv, decode_pb2.KvParams) else decode_pb2.KvParams(**kv)}


def generate_request(
    prompt: Prompt, context_id: str, kv: Kv | None, options: Mapping[str, Any]
) -> decode_pb2.GenerateRequest:
    groups: dict[str, dict[str, Any]] = {}
    for name, value in options.items():
        group = next((g for g, names in _GROUPS.items() if name in names), None)
        if group is None:
            known = ", ".join(sorted(name for names in _GROUPS.values() for name in names))
            raise TypeError(f"'{name}' is no option of generate; there are {known}")
        groups.setdefault(group, {})[name] = several(name, value) if name in _LISTS else value
    fields: dict[str, Any] = {**prompt_fields(prompt), **kv_fields(kv), **groups}
    return decode_pb2.GenerateRequest(context_id=context_id, **fields)
