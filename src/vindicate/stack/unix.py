"""Connected Unix stream sockets of this network namespace, as the kernel tells them."""

import struct

from vindicate.stack.sockets import open_netlink
from vindicate.wire.unixdiag import UnixSocket, unix_request, unix_sockets

__all__ = ["unix_connections"]

_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_MOST_BYTES, _READ = 16_000_000, 1 << 16


def unix_connections() -> list[UnixSocket]:
    """The connected Unix stream sockets of this network namespace; empty where the kernel does not tell."""
    data = b""
    try:
        with open_netlink() as link:
            link.send(unix_request())
            while len(data) < _MOST_BYTES:
                part = link.recv(_READ)
                data += part
                if struct.unpack_from("=IH", part)[1] in (_NLMSG_ERROR, _NLMSG_DONE) or _ends(part):
                    break
    except (OSError, struct.error):
        return []
    return list(unix_sockets(data))


def _ends(part: bytes) -> bool:
    """Whether the last of these messages says that the dump is over."""
    at, kind = 0, 0
    while at + 16 <= len(part):
        length, kind = struct.unpack_from("=IH", part, at)
        if length < 16:
            return True
        at += (length + 3) & ~3
    return kind == _NLMSG_DONE
