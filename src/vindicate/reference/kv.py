"""KV bytes ↔ what travels from prefill to decode: a header with room, length and checksum, then the bytes; pure."""

import struct
import zlib
from typing import Final

__all__ = ["HEADER", "KvError", "check", "header", "read_header"]

_MAGIC: Final = b"VKV1"
HEADER: Final = struct.Struct(">4sQQI")


class KvError(Exception):
    """The KV that came is not the KV that was computed, or never came; the text says which."""


def header(room: int, kv: bytes) -> bytes:
    """What goes ahead of *kv*: magic, room, length, CRC-32."""
    return HEADER.pack(_MAGIC, room, len(kv), zlib.crc32(kv))


def read_header(data: bytes, room: int) -> tuple[int, int]:
    """Length and checksum of the KV that follows.

    Raises:
        KvError: It is no header, or one for another room.
    """
    magic, its_room, length, checksum = HEADER.unpack(data)
    if magic != _MAGIC:
        raise KvError(f"prefill sent {data[:8]!r} where a KV header was due")
    if its_room != room:
        raise KvError(f"prefill sent the KV of room {its_room} to room {room}")
    return length, checksum


def check(kv: bytes, checksum: int) -> bytes:
    """*kv* itself.

    Raises:
        KvError: It is not what *checksum* was taken of.
    """
    if zlib.crc32(kv) != checksum:
        raise KvError(f"the checksum of {len(kv)} bytes of KV does not match; the transfer corrupted them")
    return kv
