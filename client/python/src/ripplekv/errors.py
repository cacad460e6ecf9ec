"""What a failed call raises."""

from __future__ import annotations

import dataclasses

import grpc
from google.rpc import error_details_pb2, status_pb2


@dataclasses.dataclass(frozen=True)
class FieldViolation:
    field: str
    description: str


class RippleKVError(Exception):
    """A call that failed, with what the server said of it. Subclasses name the codes that callers tell apart."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        field_violations: tuple[FieldViolation, ...] = (),
        retry_delay_seconds: float | None = None,
        resource_type: str = "",
        resource_name: str = "",
        request_id: str = "",
    ) -> None:
        self.code = code
        self.message = message
        self.field_violations = field_violations
        self.retry_delay_seconds = retry_delay_seconds
        self.resource_type = resource_type
        self.resource_name = resource_name
        self.request_id = request_id
        super().__init__(str(self))

    def __str__(self) -> str:
        lines = [f"{self.code.name}: {self.message}"]
        lines += [f"{v.field}: {v.description}" for v in self.field_violations if v.description not in self.message]
        if self.retry_delay_seconds is not None:
            lines.append(f"retry after {self.retry_delay_seconds:g} s")
        if self.request_id:
            lines.append(f"request id {self.request_id}")
        return "\n".join(lines)


class Unauthenticated(RippleKVError):
    """The server needs a token, and takes another one."""


class InvalidArgument(RippleKVError):
    """`field_violations` name the fields, with the values they may have."""


class NotFound(RippleKVError):
    """`resource_type` and `resource_name` say what there is none of."""


class FailedPrecondition(RippleKVError):
    """What was asked for needs something that is not there yet, e.g. a profile."""


class ResourceExhausted(RippleKVError):
    """Try again after `retry_delay_seconds`; where that is None, waiting does not help."""


class Unavailable(RippleKVError):
    """The server cannot be reached, loads its model or is draining."""


class DeadlineExceeded(RippleKVError):
    """The call's timeout passed."""


class Cancelled(RippleKVError):
    """By this client, or by the server as the message says."""


_BY_CODE: dict[grpc.StatusCode, type[RippleKVError]] = {
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
}


def explain_handshake(tls: bool, message: str) -> str:
    """What it says about the server that a connection ended with that message of grpc's; empty where nothing. As
    client/handshake.h."""
    text = message.lower().replace("_", " ")
    closed = any(each in text for each in ("socket closed", "connection reset", "broken pipe"))
    if not tls:
        return (
            "it ends connections in plain text: if it speaks TLS, call it by TLS (tls=True or tls_ca)" if closed else ""
        )
    if "wrong version number" in text:
        return "it does not speak TLS: call it in plain text, or turn TLS on there"
    if "certificate verify failed" in text:
        return "its certificate is of no CA that is trusted here, or not valid today: name the file of its CA (tls_ca), or renew it there"
    if "is not in peer certificate" in text or "hostname verification check failed" in text:
        return "its certificate is for another name: call it by a name or address that the certificate holds"
    if closed or "alert" in text:
        return "it ends connections after the handshake: it may want a client's certificate (tls_certificate, tls_key), of a CA that it trusts"
    return ""


def error_of(error: grpc.RpcError, address: str, tls: bool = False) -> RippleKVError:
    """What is raised in place of grpc's own error. `error` is a finished call."""
    code, message = error.code(), error.details() or ""
    # In the trailers where the call failed before its first message.
    metadata = [*(error.initial_metadata() or ()), *(error.trailing_metadata() or ())]
    request_id = next((str(v) for k, v in metadata if k == "x-request-id"), "")
    violations: list[FieldViolation] = []
    retry, resource = None, ("", "")
    answered = False
    for key, value in error.trailing_metadata() or ():
        if key != "grpc-status-details-bin":
            continue
        answered = True
        for detail in status_pb2.Status.FromString(value).details:
            name = detail.type_url.rpartition(".")[2]
            if name == "BadRequest":
                bad = error_details_pb2.BadRequest.FromString(detail.value)
                violations += [FieldViolation(v.field, v.description) for v in bad.field_violations]
            elif name == "RetryInfo":
                delay = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay
                retry = delay.seconds + delay.nanos / 1e9
            elif name == "ResourceInfo":
                info = error_details_pb2.ResourceInfo.FromString(detail.value)
                resource = (info.resource_type, info.resource_name)
    if code == grpc.StatusCode.UNAVAILABLE and not answered and not request_id:
        why = explain_handshake(tls, message)
        message = f"no answer from a server at {address}{': ' if why else ''}{why} ({message})"
    return _BY_CODE.get(code, RippleKVError)(
        code,
        message,
        field_violations=tuple(violations),
        retry_delay_seconds=retry,
        resource_type=resource[0],
        resource_name=resource[1],
        request_id=request_id,
    )
