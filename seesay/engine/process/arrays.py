"""Arrays in messages: small ones in line, large ones in shared memory that has no name.

The memory is an anonymous file (`memfd`) whose descriptor goes from process to process over a Unix socket. The kernel
frees it with its last mapping, however the two processes end, and `/dev/shm`, which is small in many containers, plays
no part in it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

INLINE_BYTES = 32 << 10
"""Larger arrays go through shared memory: below it, a copy is cheaper than a mapping."""

_CODE = 1
"""Of the extension of MessagePack that is an array."""
_ALIGNMENT = 64
_KINDS = "biuf"

Buffer = ctypes.Array[ctypes.c_ubyte]
Piece = tuple[int, npt.NDArray[Any]]
"""A large array of a message, and the byte at which it begins in the message's shared memory."""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MAP_FAILED = ctypes.c_void_p(-1).value


class ArrayWriter:
    """Writes the arrays of one message: `encode_hook` is for msgspec; the large ones are `pieces` then, not copied yet,
    which are `num_shared_bytes` together, and `share` makes a file of them."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.num_shared_bytes = 0

    def encode_hook(self, value: Any) -> Any:
        """Return an array as an extension of MessagePack, a NumPy number as a plain one. Raises `TypeError`."""
        if isinstance(value, np.generic):
            return value.item()
        if not isinstance(value, np.ndarray) or value.dtype.kind not in _KINDS:
            kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
            raise TypeError(f"{kind} cannot cross to another process")
        if value.nbytes <= INLINE_BYTES:
            return _pack(value, value.tobytes())
        start = self.num_shared_bytes
        self.pieces.append((start, value))
        self.num_shared_bytes += value.nbytes + -value.nbytes % _ALIGNMENT
        return _pack(value, start)

    def share(self) -> int:
        """Return the descriptor of an anonymous file that holds the large arrays; it is the caller's to close. Raises
        `OSError` without memory or descriptors."""
        descriptor = make_file("seesay")
        try:
            os.ftruncate(descriptor, self.num_shared_bytes)
            for start, array in self.pieces:
                data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
                while len(data):
                    num_written = os.pwrite(descriptor, data, start)
                    data, start = data[num_written:], start + num_written
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


class ArrayReader:
    """Reads the arrays of messages, of one after another."""

    def __init__(self) -> None:
        self._shared: Buffer | None = None

    @contextmanager
    def reading(self, shared: Buffer | None) -> Generator[None]:
        """A context in which a message is read whose large arrays are in `shared`. Each of them keeps it mapped."""
        self._shared = shared
        try:
            yield
        finally:
            self._shared = None

    def extension_hook(self, code: int, data: memoryview) -> npt.NDArray[Any]:
        """Return the array of an extension. Raises `ValueError` for whatever `ArrayWriter` does not write."""
        if code != _CODE:
            raise ValueError(f"extension {code} is not expected in a message")
        name, shape, content = _unpack(data)
        dtype = np.dtype(name)
        if dtype.kind not in _KINDS:
            raise ValueError(f"an array of {dtype} is not expected in a message")
        count = int(np.prod(shape, dtype=np.int64))
        if isinstance(content, bytes):
            # A copy of its own memory, so that it may be written to like any other array.
            return np.frombuffer(content, dtype, count).reshape(shape).copy()
        if self._shared is None:
            raise ValueError("a large array is not expected in a message without shared memory")
        return np.frombuffer(memoryview(self._shared), dtype, count, content).reshape(shape)


def map_shared(descriptor: int, num_bytes: int) -> Buffer:
    """Map a received file of `num_bytes` and close its descriptor. Raises `ValueError` when it has another size."""
    try:
        size = os.fstat(descriptor).st_size
        if size != num_bytes:
            raise ValueError(f"shared memory of {size} bytes came with a message that tells of {num_bytes}")
        # Python's own mmap holds a descriptor for each mapping, of which a process may have 1,024.
        address = _libc.mmap(None, num_bytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
        if address == _MAP_FAILED:
            raise OSError(ctypes.get_errno(), "shared memory cannot be mapped")
        shared = (ctypes.c_ubyte * num_bytes).from_address(address)
        weakref.finalize(shared, _libc.munmap, address, num_bytes).atexit = False
        return shared
    finally:
        os.close(descriptor)


def make_file(name: str) -> int:
    """Return the descriptor of a new anonymous file. `name` is shown in lists of a process's mappings."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _pack(value: npt.NDArray[Any], content: bytes | int) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(_CODE, msgspec.msgpack.encode((value.dtype.str, value.shape, content)))


def _unpack(data: memoryview) -> tuple[str, Sequence[int], bytes | int]:
    return _HEADERS.decode(data)


_HEADERS = msgspec.msgpack.Decoder(tuple[str, tuple[int, ...], bytes | int])
