"""Records as bytes: what lets a channel be replaced by a socket.

The form is msgpack. A numpy column becomes its dtype and its bytes, and comes back read-only:
a record is a value.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar, cast, get_args, get_origin

import msgspec
import numpy as np
from numpy.typing import NDArray

Record = TypeVar("Record")


def encode(record: msgspec.Struct) -> bytes:
    """A record's bytes. Raises TypeError for a value that has no form."""
    return _ENCODER.encode(record)


def decode(data: bytes, kind: type[Record]) -> Record:
    """The record of these bytes; ``kind`` is its type, or a union of tagged types for a lane.

    Raises msgspec.ValidationError for bytes of another type, msgspec.DecodeError for damaged ones.
    """
    record: Record = _decoder(kind).decode(data)
    return record


def _column_to_parts(value: Any) -> tuple[str, bytes]:
    name = type(value).__name__
    if isinstance(value, np.ndarray):
        column = cast("NDArray[np.generic]", value)
        if column.ndim == 1 and column.dtype.kind in "iufb":
            return column.dtype.str, column.tobytes()
    raise TypeError(f"{name} has no form in a record, a column of numbers has")


def _column_from_parts(kind: Any, parts: Any) -> Any:
    """The column that a field declared as ``NDArray[...]`` asks for."""
    if get_origin(kind) is not np.ndarray:
        raise TypeError(f"{kind} has no form in a record")
    (wanted,) = get_args(get_args(kind)[1])
    name, data = parts
    if name != np.dtype(wanted).str:
        raise ValueError(f"column is {name!r}, {np.dtype(wanted).str!r} is needed")
    return np.frombuffer(data, wanted)


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind, dec_hook=_column_from_parts)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_column_to_parts)
