"""What generating returns. Everything else returns the messages of the API as they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from .errors import RippleKVError
from .v1 import decode_pb2


@dataclasses.dataclass(frozen=True)
class Generation:
    """A whole answer."""

    text: str
    token_ids: list[int]
    # One a token where asked for.
    logprobs: list[decode_pb2.TokenLogprob]
    # Why it ended, usage, the cache that was kept, timings, next_token_kl.
    complete: decode_pb2.GenerateComplete
    request_id: str


class GenerationStream:
    """Chunks as they are made. Iterate it to its end, after which `complete` is set, or leave its `with` block (or
    `cancel`), which ends the generation on the server too."""

    def __init__(self, call: Any, error_of: Callable[[grpc.RpcError], RippleKVError]) -> None:
        self._call = call
        self._error_of = error_of
        self.complete: decode_pb2.GenerateComplete | None = None
        self.request_id = ""

    def __iter__(self) -> Iterator[decode_pb2.GenerateChunk]:
        try:
            for response in self._call:
                self.request_id = response.request_id
                if response.HasField("complete"):
                    self.complete = response.complete
                else:
                    yield response.chunk
        except grpc.RpcError as error:
            raise self._error_of(error) from None
        if self.complete is None:
            raise RippleKVError(grpc.StatusCode.INTERNAL, "the server ended its stream without 'complete'")

    def cancel(self) -> None:
        self._call.cancel()

    def __enter__(self) -> GenerationStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def whole(self) -> Generation:
        """Reads what is left of the stream; what interrupts that ends the generation on the server too."""
        text, ids, logprobs = [], [], []
        with self:
            for chunk in self:
                text.append(chunk.text)
                ids += chunk.token_ids
                logprobs += chunk.logprobs
        assert self.complete is not None
        return Generation("".join(text), ids, logprobs, self.complete, self.request_id)
