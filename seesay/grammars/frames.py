"""Messages over a pipe: msgpack behind its length in four bytes."""

from __future__ import annotations

import struct
from typing import IO, Any

import msgspec


def write_frame(stream: IO[bytes], value: Any) -> None:
    data = msgspec.msgpack.encode(value)
    stream.write(struct.pack("<I", len(data)) + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> Any:
    """Return the next message. Raises EOFError at the end."""
    [size] = struct.unpack("<I", _read(stream, 4))
    return msgspec.msgpack.decode(_read(stream, size))


def _read(stream: IO[bytes], size: int) -> bytes:
    data = b""
    while len(data) < size:  # a stream without a buffer returns what is there
        piece = stream.read(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data
