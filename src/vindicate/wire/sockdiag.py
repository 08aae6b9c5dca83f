"""Netlink `sock_diag` messages ↔ a request for TCP sockets, and one table with a row for each socket the kernel told of.

Layouts: Linux `include/uapi/linux/netlink.h`, `sock_diag.h`, `inet_diag.h` and `tcp.h` (these are kernel ABI: fields are
only ever added at the end of `struct tcp_info`). A shorter one, of an older kernel, leaves the missing columns 0 and
unsets their `has_…` column; a longer one is cut. Messages of equal length are decoded together, as one array.

A message, in bytes from its start; all numbers but the two ports are in the host's byte order:

      0  struct nlmsghdr        length u32, type u16, flags u16, sequence u32, port id u32
     16  struct inet_diag_msg   family, state, timer, retrans u8; 20 struct inet_diag_sockid: ports be16, addresses 4 be32
                                each, interface u32, cookie 2 u32; 68 expires, 72 rqueue, 76 wqueue, 80 uid, 84 inode u32
     88  struct nlattr …        length u16 (with these four bytes), type u16, payload, padded to four; of type INET_DIAG_INFO
                                the payload is struct tcp_info, whose offsets stand in `_INFO_FIELDS`
"""

import functools
import ipaddress
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "AF_INET",
    "AF_INET6",
    "LISTEN",
    "STATES",
    "TIME_WAIT",
    "DumpReader",
    "NetlinkRefusedError",
    "SockDiagError",
    "SocketTable",
    "address_text",
    "decode",
    "empty_table",
    "is_remnant",
    "joined",
    "payload_received",
    "payload_sent",
    "picked",
    "port_filter",
    "request",
]

SocketTable = npt.NDArray[np.void]

# include/net/tcp_states.h; the names are the kernel's, without TCP_.
STATES = (
    "UNKNOWN",
    "ESTABLISHED",
    "SYN_SENT",
    "SYN_RECV",
    "FIN_WAIT1",
    "FIN_WAIT2",
    "TIME_WAIT",
    "CLOSE",
    "CLOSE_WAIT",
    "LAST_ACK",
    "LISTEN",
    "CLOSING",
)
_FIN_WAIT_2, TIME_WAIT, _CLOSE_WAIT, _LAST_ACK, LISTEN, _CLOSING = 5, 6, 8, 9, 10, 11

AF_INET, AF_INET6, _IPPROTO_TCP = 2, 10, 6  # Linux' numbers; this room imports no socket
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST_DUMP = 0x301
_INET_DIAG_REQ_BYTECODE = 1
_INET_DIAG_INFO = 2
_BC_JMP, _BC_S_EQ, _BC_D_EQ = 1, 11, 12
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port id
_REQUEST = struct.Struct("=BBBBI")  # struct inet_diag_req_v2 up to its id: family, protocol, ext, pad, states
_BC_OP = struct.Struct("=BBH")  # struct inet_diag_bc_op: code, yes, no
_MESSAGE_LEN = 72  # struct inet_diag_msg
_ATTRIBUTES = _HEADER.size + _MESSAGE_LEN

# Column → (type, offset). In `struct inet_diag_msg`, from the start of the netlink header:
_MESSAGE_FIELDS: dict[str, tuple[str, int]] = {
    "family": ("u1", 16),
    "state": ("u1", 17),
    "timer": ("u1", 18),
    "sport": (">u2", 20),
    "dport": (">u2", 22),
    "src": ("V16", 24),
    "dst": ("V16", 40),
    "cookie": ("u8", 60),
    "rqueue": ("u4", 72),
    "wqueue": ("u4", 76),
    "uid": ("u4", 80),
    "inode": ("u4", 84),
}
# … and in `struct tcp_info`, from its start:
_INFO_FIELDS: dict[str, tuple[str, int]] = {
    "info_state": ("u1", 0),  # read with the counters, under the socket's lock; "state" is read a moment before
    "unacked": ("u4", 24),
    "last_data_sent": ("u4", 44),
    "last_data_recv": ("u4", 52),
    "last_ack_recv": ("u4", 56),
    "total_retrans": ("u4", 100),
    "bytes_acked": ("u8", 120),
    "bytes_received": ("u8", 128),
    "bytes_sent": ("u8", 200),
    "bytes_retrans": ("u8", 208),
}
_COLUMNS = np.dtype(
    [(name, kind.lstrip(">")) for name, (kind, _) in (_MESSAGE_FIELDS | _INFO_FIELDS).items()]
    + [("has_info", "?"), ("has_bytes", "?"), ("has_sent", "?")],
    align=True,
)


class SockDiagError(ValueError):
    """The bytes are no answer of `sock_diag`."""


class NetlinkRefusedError(SockDiagError):
    """The kernel answered with an error; *errno* is its number."""

    def __init__(self, errno: int) -> None:
        super().__init__(f"netlink error {errno}")
        self.errno = errno


def empty_table(n_rows: int = 0) -> SocketTable:
    """A table of *n_rows* rows of zeros.

    Columns: those of `struct inet_diag_msg` (``family`` … ``inode``) and `struct tcp_info` (``unacked`` … ``bytes_retrans``),
    and ``has_info``, ``has_bytes``, ``has_sent``: which parts of tcp_info the kernel gave.
    """
    return np.zeros(n_rows, dtype=_COLUMNS)


def joined(tables: Iterable[SocketTable]) -> SocketTable:
    """The rows of all *tables* in one; as bytes, because numpy joins records field by field, which takes 25 times as long."""
    parts = [table.view(f"V{_COLUMNS.itemsize}") for table in tables]
    if not parts:
        return empty_table()
    whole: SocketTable = (parts[0] if len(parts) == 1 else np.concatenate(parts)).view(_COLUMNS)
    return whole


def picked(table: SocketTable, which: npt.NDArray[np.bool_]) -> SocketTable:
    """The rows *which* of *table*; as bytes, like `joined`."""
    rows: SocketTable = table.view(f"V{_COLUMNS.itemsize}")[which].view(_COLUMNS)
    return rows


def request(family: int, *, sequence: int = 1, states: int = 0xFFF, ports: Iterable[int] = ()) -> bytes:
    """Encode the request to dump all TCP sockets of *family*, with their `tcp_info`.

    Args:
        family: ``AF_INET`` or ``AF_INET6``.
        states: Bit mask of 1 << state.
        ports: If any: only sockets with one of these ports at either end, chosen by the kernel (Linux 5.11 and later).
    """
    body = _REQUEST.pack(family, _IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, states) + bytes(48)
    code = port_filter(ports)
    if code:
        body += struct.pack("=HH", len(code) + 4, _INET_DIAG_REQ_BYTECODE) + code
    return _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, sequence, 0) + body


def port_filter(ports: Iterable[int]) -> bytes:
    """Byte code for the kernel (`inet_diag_bc_run` in net/ipv4/inet_diag.c): true if either port is one of *ports*.

    Each test is *compare; if it holds jump to the end; else to the next test*; the last test's failure jumps past the end,
    which rejects. Jumps count bytes from the instruction.
    """
    tests = [(code, port) for port in sorted(set(ports)) for code in (_BC_S_EQ, _BC_D_EQ)]
    total = 12 * len(tests) - (4 if tests else 0)
    code = b""
    for index, (operation, port) in enumerate(tests):
        left = total - len(code)
        last = index == len(tests) - 1
        code += _BC_OP.pack(operation, 8, left + 4 if last else 12) + _BC_OP.pack(0, 0, port)
        if not last:
            code += _BC_OP.pack(_BC_JMP, 4, left - 8)
    return code


class DumpReader:
    """Takes the buffers of one dump as they are read, each with whole messages, and decodes them.

    Attributes:
        done: The kernel has said that this was all.
    """

    def __init__(self) -> None:
        self.done = False
        self._tables: list[SocketTable] = []

    def feed(self, data: bytes | memoryview) -> None:
        """Take one buffer; it may be used again afterwards.

        Raises:
            NetlinkRefusedError: The kernel refused the request.
            SockDiagError: The bytes are cut short or mean nothing.

        Cost:
            A few array operations over the buffer; one step of a loop for each message that follows one of another kind.
        """
        if len(data) % 4:
            raise SockDiagError(f"{len(data)} bytes, and messages come in fours")
        words = memoryview(data).cast("B").cast("I")
        places = _sockets_ahead(np.frombuffer(data, np.uint32))
        singles: list[int] = []
        here, end = 0, len(words)
        if len(places):
            here = int(places[-1]) + _n_words(words[int(places[-1])])
        while here < end and not self.done:
            length = words[here]
            if length < _HEADER.size or _n_words(length) > end - here:
                raise SockDiagError(f"a message says it has {length} bytes; {4 * (end - here)} are there")
            kind = words[here + 1] & 0xFFFF
            if kind == _SOCK_DIAG_BY_FAMILY:
                singles.append(here)
            elif kind == _NLMSG_DONE:
                self.done = True
            elif kind == _NLMSG_ERROR:
                self._refuse(words, here, length)
            here += _n_words(length)
        self._decode(data, np.concatenate([places, np.array(singles, np.int64)]))

    def _decode(self, data: bytes | memoryview, places: npt.NDArray[np.int64]) -> None:
        """Decode the messages that begin at the words *places*, those of each length together."""
        lengths = np.frombuffer(data, np.uint32)[places]
        for length in np.unique(lengths).tolist():
            n_bytes = 4 * _n_words(length)
            # A message could begin at every word; of all these, take those that do.
            any_message = np.ndarray(((len(data) - n_bytes) // 4 + 1,), f"V{n_bytes}", data, strides=(4,))
            chosen = any_message[places[lengths == length]]
            self._tables.append(_rows(chosen.view(np.uint8).reshape(-1, n_bytes), length))

    def _refuse(self, words: memoryview, at: int, length: int) -> None:
        if length < _HEADER.size + 4:
            raise SockDiagError("an error message without a number")
        number = -struct.unpack_from("=i", words, 4 * at + _HEADER.size)[0]
        if number:
            raise NetlinkRefusedError(number)
        self.done = True

    def table(self) -> SocketTable:
        """All sockets so far; those of one buffer are grouped by the length of their message."""
        return joined(self._tables)


def _n_words(length: int) -> int:
    """Four-byte words that a message or attribute of *length* bytes takes: both are padded (NLMSG_ALIGN, NLA_ALIGN)."""
    return (length + 3) >> 2


def _sockets_ahead(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """Where the first messages of the buffer begin, as far as they are sockets and have the first's type, flags, sequence and port.

    A message's place follows from the length of the one before, which is a walk. Here all places that look like such a
    header are found at once; as each of those that are kept begins where the one before ends, they are the walk's.
    """
    none = np.zeros(0, np.int64)
    if len(words) < _ATTRIBUTES // 4 or words[1] & 0xFFFF != _SOCK_DIAG_BY_FAMILY:
        return none
    alike = (words[1:-2] == words[1]) & (words[2:-1] == words[2]) & (words[3:] == words[3])
    places = np.flatnonzero(alike)
    lengths = words[places].astype(np.int64)
    ends = places + (lengths + 3 >> 2)
    fits = (lengths >= _HEADER.size) & (ends <= len(words))
    fits[1:] &= ends[:-1] == places[1:]
    return none if not len(fits) else places if fits.all() else places[: int(fits.argmin())]


def decode(data: bytes) -> SocketTable:
    """Decode one buffer that stands alone, such as a notice.

    Raises:
        NetlinkRefusedError: It is an error message.
        SockDiagError: The bytes are cut short or mean nothing.
    """
    reader = DumpReader()
    reader.feed(data)
    return reader.table()


def _rows(block: npt.NDArray[np.uint8], length: int) -> SocketTable:
    """Decode messages of equal length, one a row of *block*; at each turn those whose attributes stand as in the first of them."""
    if length < _ATTRIBUTES:
        raise SockDiagError(f"a socket of {length} bytes; at least {_ATTRIBUTES} expected")
    tables = []
    while len(block):
        info_at, info_len, heads = _find_info(block[0, :length].tobytes())
        words = block.view(np.uint32)
        alike = (words[:, heads] == words[0, heads]).all(axis=1)
        every = alike.all()
        tables.append(_alike(block if every else block[alike], info_at, info_len))
        block = block[:0] if every else block[~alike]
    return joined(tables)


def _alike(block: npt.NDArray[np.uint8], info_at: int, info_len: int) -> SocketTable:
    """Decode messages whose `tcp_info` stands at the same place."""
    table = empty_table(len(block))
    layout = _layout(block.shape[1], info_at, info_len)
    rows = block.view(layout)[:, 0]
    known = layout.names or ()
    for name in known:
        table[name] = rows[name]
    table["has_info"] = "last_data_recv" in known
    table["has_bytes"] = "bytes_received" in known
    table["has_sent"] = "bytes_retrans" in known
    return table


@functools.lru_cache(maxsize=64)  # a kernel writes a few layouts only
def _layout(n_bytes: int, info_at: int, info_len: int) -> np.dtype[np.void]:
    """Where the columns stand in a message of *n_bytes*; those that lie past the end of its `tcp_info` are left out."""
    fields = _MESSAGE_FIELDS | {
        name: (kind, info_at + at)
        for name, (kind, at) in _INFO_FIELDS.items()
        if at + np.dtype(kind).itemsize <= info_len
    }
    layout: Any = {
        "names": list(fields),
        "formats": [kind for kind, _ in fields.values()],
        "offsets": [at for _, at in fields.values()],
        "itemsize": n_bytes,
    }
    dtype: np.dtype[np.void] = np.dtype(layout)
    return dtype


def _find_info(message: bytes) -> tuple[int, int, list[int]]:
    """Offset and length of the tcp_info payload, length 0 when there is none; and which words are attributes' heads."""
    at, info_at, info_len = _ATTRIBUTES, 0, 0
    heads: list[int] = []
    while at + 4 <= len(message):
        size, kind = struct.unpack_from("=HH", message, at)
        if size < 4 or at + size > len(message):
            raise SockDiagError(f"an attribute says it has {size} bytes; {len(message) - at} are there")
        heads.append(at // 4)
        if kind & 0x3FFF == _INET_DIAG_INFO:
            info_at, info_len = at + 4, size - 4
        at += 4 * _n_words(size)
    return info_at, info_len, heads


def address_text(family: int, raw: bytes) -> str:
    """The numeric address as text; an IPv4 address that is mapped into IPv6 is written as IPv4."""
    if family == AF_INET:
        return str(ipaddress.IPv4Address(raw[:4]))
    address = ipaddress.IPv6Address(raw[:16])
    return str(address.ipv4_mapped or address)


def payload_received(table: SocketTable) -> npt.NDArray[np.int64]:
    """Bytes of payload received: `tcpi_bytes_received` follows the sequence number, and the peer's FIN counts as one there.

    Of a socket that has ended (CLOSE) it is not known whether a FIN had come; there the count may be one too high.
    """
    fin = np.isin(table["info_state"], (_CLOSE_WAIT, _LAST_ACK, _CLOSING, TIME_WAIT))
    received = table["bytes_received"].astype(np.int64)
    return np.where(fin & (received > 0), received - 1, received)


def payload_sent(table: SocketTable, passive: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Bytes of payload sent and acknowledged by the peer.

    `tcpi_bytes_acked` follows the sequence number too: our SYN counts as one where we opened the connection (not *passive*),
    and our acknowledged FIN as one. With nothing in flight `tcpi_bytes_sent - tcpi_bytes_retrans`, which counts payload only,
    is the exact answer; in between the correction is made from who opened it and from the state.
    """
    acked = table["bytes_acked"].astype(np.int64)
    extra = (~passive).astype(np.int64) + np.isin(table["info_state"], (_FIN_WAIT_2, TIME_WAIT))
    at_rest = table["has_sent"] & (table["unacked"] == 0)
    out = table["bytes_sent"].astype(np.int64) - table["bytes_retrans"].astype(np.int64)
    return np.where(at_rest, np.minimum(out, acked), np.maximum(acked - extra, 0))


def is_remnant(table: SocketTable) -> npt.NDArray[np.bool_]:
    """Rows that are only the kernel's note of a connection that this end has closed: TIME_WAIT, and FIN_WAIT2 without a socket."""
    orphaned = (table["state"] == _FIN_WAIT_2) & ~table["has_info"] & (table["inode"] == 0)
    remnant: npt.NDArray[np.bool_] = (table["state"] == TIME_WAIT) | orphaned
    return remnant
