"""The alphabet of byte-level BPE, as GPT-2's tokenizer defined it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache


@cache
def byte_alphabet() -> Mapping[str, int]:
    """Return the byte of each letter: bytes that are printable in Latin-1 are their own letters, the others have
    letters from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
