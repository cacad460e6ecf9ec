"""Client of a RippleKV server. `Client` calls it. `ripplekv.v1` has the messages of the API (decode_pb2, calibration_pb2,
profile_pb2); the comments of the .proto files say each field's unit, range and default."""

from .client import Client
from .errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    FieldViolation,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    RippleKVError,
    Unauthenticated,
    Unavailable,
)
from .requests import GenerateOptions, Prompt
from .results import Generation, GenerationStream

__all__ = [
    "Cancelled",
    "Client",
    "DeadlineExceeded",
    "FailedPrecondition",
    "FieldViolation",
    "GenerateOptions",
    "Generation",
    "GenerationStream",
    "InvalidArgument",
    "NotFound",
    "Prompt",
    "ResourceExhausted",
    "RippleKVError",
    "Unauthenticated",
    "Unavailable",
]
