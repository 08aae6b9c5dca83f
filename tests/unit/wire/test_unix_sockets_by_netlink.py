"""Messages of the kernel about Unix sockets: whole ones are read, and no bytes break the reader."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from vindicate.wire.unixdiag import UnixSocket, unix_request, unix_sockets


def message(inode, *, peer=None, name=b"", kind=1):
    body = struct.pack("=BBBBIII", 1, kind, 1, 0, inode, 7, 7)
    if name:
        body += struct.pack("=HH", 4 + len(name), 0) + name + bytes(-len(name) % 4)
    if peer is not None:
        body += struct.pack("=HHI", 8, 2, peer)
    return struct.pack("=IHHII", 16 + len(body), 20, 0, 1, 0) + body


def test_names_and_peers_are_told_and_datagrams_left_out():
    data = message(11, peer=12) + message(13, kind=2) + message(12, peer=11, name=b"/run/app.sock\0")
    assert list(unix_sockets(data)) == [UnixSocket(11, 12, ""), UnixSocket(12, 11, "/run/app.sock")]


def test_the_request_is_that_of_the_kernel_s_header():
    assert len(unix_request()) == 16 + 24
    assert unix_request()[16] == 1


@given(st.binary(max_size=200), st.integers(0, 120))
def test_no_bytes_break_the_reader(noise, cut):
    data = (message(11, peer=12, name=b"/x") + message(12, peer=11))[:cut] + noise
    for one in unix_sockets(data):
        assert isinstance(one.inode, int)
