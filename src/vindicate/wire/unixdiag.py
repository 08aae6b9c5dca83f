"""Netlink `sock_diag` messages of Unix stream sockets ↔ a request for them, and who is connected to whom.

Layouts: Linux `include/uapi/linux/unix_diag.h`; kernel ABI, numbers in the host's byte order:

      0  struct nlmsghdr        length u32, type u16, flags u16, sequence u32, port id u32
     16  struct unix_diag_req   family, protocol u8, pad u16, states, inode, show u32, cookie 2 u32
     16  struct unix_diag_msg   family, type, state, pad u8, inode u32, cookie 2 u32
     32  struct nlattr …        length u16 (with these four bytes), type u16, payload, padded to four
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["UnixSocket", "unix_request", "unix_sockets"]

_AF_UNIX, _STREAM, _ESTABLISHED = 1, 1, 1
_BY_FAMILY, _DUMP = 20, 0x301
_SHOW_NAME, _SHOW_PEER = 1, 4
_NAME, _PEER = 0, 2
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBHIIIII")
_MESSAGE = struct.Struct("=BBBBIII")


@dataclass(frozen=True, slots=True)
class UnixSocket:
    """One connected stream socket. *name* is the path it is bound to, as the listener's is that of each one it accepted; else empty."""

    inode: int
    peer: int | None
    name: str


def unix_request() -> bytes:
    """The request to dump all connected Unix sockets with their names and peers."""
    body = _REQUEST.pack(_AF_UNIX, 0, 0, 1 << _ESTABLISHED, 0, _SHOW_NAME | _SHOW_PEER, 0, 0)
    return _HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _DUMP, 1, 0) + body


def unix_sockets(data: bytes) -> Iterator[UnixSocket]:
    """The stream sockets in *data*, whole messages of a dump; what is cut off or of another kind is left out."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size or at + length > len(data):
            return
        body = at + _HEADER.size
        if kind == _BY_FAMILY and length >= _HEADER.size + _MESSAGE.size:
            family, type_, _state, _pad, inode, *_ = _MESSAGE.unpack_from(data, body)
            if (family, type_) == (_AF_UNIX, _STREAM):
                told = dict(_attributes(data[body + _MESSAGE.size : at + length]))
                peer = told.get(_PEER, b"")
                yield UnixSocket(
                    inode,
                    struct.unpack("=I", peer)[0] if len(peer) == 4 else None,
                    told.get(_NAME, b"").split(b"\0")[0].decode(errors="replace"),
                )
        at += (length + 3) & ~3


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        size, kind = struct.unpack_from("=HH", data, at)
        if size < 4 or at + size > len(data):
            return
        yield kind & 0x3FFF, data[at + 4 : at + size]
        at += (size + 3) & ~3
