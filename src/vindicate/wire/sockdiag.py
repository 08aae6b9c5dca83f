"""Netlink `sock_diag` messages ↔ a request for TCP sockets, and one table with a row for each socket the kernel told of.

Layouts: Linux `include/uapi/linux/netlink.h`, `sock_diag.h`, `inet_diag.h` and `tcp.h` (these are kernel ABI: fields are
only ever added at the end of `struct tcp_info`). A shorter one, of an older kernel, leaves the missing columns 0 and
unsets their `has_…` column; a longer one is cut. Messages of equal length are decoded together, as one array.
"""

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
    "payload_received",
    "payload_sent",
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
_NLM_F_DUMP_INTR = 0x10
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
    "info_state": (
        "u1",
        0,
    ),  # read together with the counters, under the socket's lock; "state" is read a moment before
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
    + [("has_info", "?"), ("has_bytes", "?"), ("has_sent", "?")]
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
    """Takes the buffers of one dump as they are read, and decodes them together.

    Attributes:
        done: The kernel has said that this was all.
        interrupted: The kernel says that sockets came or went meanwhile; the dump may lack some.
    """

    def __init__(self) -> None:
        self.done = False
        self.interrupted = False
        self._buffers: list[bytes] = []
        self._size = 0
        self._offsets: dict[int, list[int]] = {}  # by message length

    def feed(self, data: bytes) -> None:
        """Take one buffer.

        Raises:
            NetlinkRefusedError: The kernel refused the request.
            SockDiagError: The bytes are cut short or mean nothing.

        Cost:
            One step of a loop for each message; the fields are read in `table`.
        """
        if len(data) % 4:
            raise SockDiagError(f"{len(data)} bytes, and messages come in fours")
        words = memoryview(data).cast("I")
        here, end = 0, len(words)
        while here < end and not self.done:
            length = words[here]
            step = (length + 3) >> 2
            if length < _HEADER.size or step > end - here:
                raise SockDiagError(f"a message says it has {length} bytes; {4 * (end - here)} are there")
            kind, flags = words[here + 1] & 0xFFFF, words[here + 1] >> 16
            if flags & _NLM_F_DUMP_INTR:
                self.interrupted = True
            if kind == _SOCK_DIAG_BY_FAMILY:
                self._offsets.setdefault(length, []).append(self._size + 4 * here)
            elif kind == _NLMSG_DONE:
                self.done = True
            elif kind == _NLMSG_ERROR:
                self._refuse(data, 4 * here, length)
            here += step
        self._buffers.append(data)
        self._size += len(data)

    def _refuse(self, data: bytes, at: int, length: int) -> None:
        if length < _HEADER.size + 4:
            raise SockDiagError("an error message without a number")
        number = -struct.unpack_from("=i", data, at + _HEADER.size)[0]
        if number:
            raise NetlinkRefusedError(number)
        self.done = True

    def table(self) -> SocketTable:
        """All sockets so far, grouped by the length of their message.

        Raises:
            SockDiagError: A message is too short for a socket, or its attributes do not fit into it.
        """
        raw = np.frombuffer(b"".join(self._buffers), np.uint8)
        tables = [
            _rows(raw[np.array(offsets)[:, None] + np.arange(length)]) for length, offsets in self._offsets.items()
        ]
        return np.concatenate(tables) if tables else empty_table()


def decode(data: bytes) -> SocketTable:
    """Decode one buffer that stands alone, such as a notice.

    Raises:
        NetlinkRefusedError: It is an error message.
        SockDiagError: The bytes are cut short or mean nothing.
    """
    reader = DumpReader()
    reader.feed(data)
    return reader.table()


def _rows(block: npt.NDArray[np.uint8]) -> SocketTable:
    """Decode messages of equal length, one a row of *block*; those whose attributes stand elsewhere than in the first, apart."""
    length = block.shape[1]
    if length < _ATTRIBUTES:
        raise SockDiagError(f"a socket of {length} bytes; at least {_ATTRIBUTES} expected")
    info_at, info_len, heads = _find_info(block[0].tobytes())
    alike = (block[:, heads] == block[0, heads]).all(axis=1)
    if not alike.all():
        return np.concatenate([_rows(block[alike]), _rows(block[~alike])])
    table = empty_table(len(block))
    known = {
        name: (kind, info_at + at)
        for name, (kind, at) in _INFO_FIELDS.items()
        if at + np.dtype(kind).itemsize <= info_len
    }
    fields = _MESSAGE_FIELDS | known
    layout: Any = {
        "names": list(fields),
        "formats": [kind for kind, _ in fields.values()],
        "offsets": [at for _, at in fields.values()],
        "itemsize": length,
    }
    rows = np.ndarray((len(block),), np.dtype(layout), np.ascontiguousarray(block).data)
    for name in fields:
        table[name] = rows[name]
    table["has_info"] = "last_data_recv" in known
    table["has_bytes"] = "bytes_received" in known
    table["has_sent"] = "bytes_retrans" in known
    return table


def _find_info(message: bytes) -> tuple[int, int, list[int]]:
    """Offset and length of the tcp_info payload, length 0 when there is none; and the offsets of all attribute headers' bytes."""
    at, info_at, info_len = _ATTRIBUTES, 0, 0
    heads: list[int] = []
    while at + 4 <= len(message):
        size, kind = struct.unpack_from("=HH", message, at)
        if size < 4 or at + size > len(message):
            raise SockDiagError(f"an attribute says it has {size} bytes; {len(message) - at} are there")
        heads.extend(range(at, at + 4))
        if kind & 0x3FFF == _INET_DIAG_INFO:
            info_at, info_len = at + 4, size - 4
        at += (size + 3) & ~3
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
