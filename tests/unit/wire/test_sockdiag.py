"""The netlink codec against messages built here by hand, and against noise."""

import contextlib
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vindicate.wire.sockdiag import (
    AF_INET,
    AF_INET6,
    STATES,
    DumpReader,
    NetlinkRefusedError,
    SockDiagError,
    address_text,
    decode,
    is_remnant,
    payload_received,
    payload_sent,
    port_filter,
    request,
)

FULL = 232  # sizeof(struct tcp_info) of Linux 5.5 to 6.x


def tcp_info(size=FULL, **fields):
    at = {
        "unacked": ("I", 24), "last_data_sent": ("I", 44), "last_data_recv": ("I", 52), "total_retrans": ("I", 100),
        "bytes_acked": ("Q", 120), "bytes_received": ("Q", 128), "bytes_sent": ("Q", 200), "bytes_retrans": ("Q", 208),
    }  # fmt: skip
    raw = bytearray(max(size, FULL))
    for name, value in fields.items():
        struct.pack_into("=" + at[name][0], raw, at[name][1], value)
    return bytes(raw[:size])


def message(
    *, state=1, sport=8000, dport=40000, rqueue=0, wqueue=0, inode=7, cookie=9, timer=0, info=None, extra=b"", v6=None
):
    family = AF_INET6 if v6 else AF_INET
    src = v6 or bytes([127, 0, 0, 1]) + bytes(12)
    body = struct.pack("=BBBB", family, state, timer, 0) + struct.pack(">HH", sport, dport) + src + src
    body += struct.pack("=IQ", 0, cookie) + struct.pack("=IIIII", 0, rqueue, wqueue, 1000, inode)
    body += extra
    if info is not None:
        info = bytes([state]) + info[1:]
        body += struct.pack("=HH", 4 + len(info), 2) + info
    body += bytes(-len(body) % 4)
    return struct.pack("=IHHII", 16 + len(body), 20, 2, 1, 0) + body


DONE = struct.pack("=IHHII", 20, 3, 2, 1, 0) + bytes(4)


def test_reads_the_counters_of_a_run_of_equal_messages():
    data = b"".join(
        message(sport=8000 + n, rqueue=n, inode=n, info=tcp_info(bytes_received=100 * n, last_data_recv=n))
        for n in range(5)
    )
    reader = DumpReader()
    reader.feed(data + DONE)
    table = reader.table()
    assert reader.done
    assert table["sport"].tolist() == [8000, 8001, 8002, 8003, 8004]
    assert table["rqueue"].tolist() == [0, 1, 2, 3, 4]
    assert table["bytes_received"].tolist() == [0, 100, 200, 300, 400]
    assert table["last_data_recv"].tolist() == [0, 1, 2, 3, 4]
    assert table["has_sent"].all()


def test_an_attribute_in_front_of_the_info_of_one_message_does_not_shift_the_others():
    shut = struct.pack("=HHI", 8, 8, 0)  # INET_DIAG_SHUTDOWN; the others carry as many bytes behind instead
    other = message(info=tcp_info(bytes_received=1)) + b""
    odd = message(extra=shut, info=tcp_info(size=FULL - 8, bytes_received=2))
    assert len(odd) == len(other)
    table = np.sort(decode(other + odd + other), order="bytes_received")
    assert table["bytes_received"].tolist() == [1, 1, 2]


@pytest.mark.parametrize(
    ("size", "known"),
    [(104, (True, False, False)), (136, (True, True, False)), (232, (True, True, True)), (400, (True, True, True))],
)
def test_a_shorter_or_longer_tcp_info_says_what_it_does_not_hold(size, known):
    row = decode(message(info=tcp_info(size=size, last_data_recv=5)))[0]
    assert (row["has_info"], row["has_bytes"], row["has_sent"]) == known
    assert row["last_data_recv"] == 5


def test_a_socket_without_info_is_told_apart_from_one_with_zeros():
    assert not decode(message(state=6))["has_info"][0]
    assert decode(message(info=tcp_info()))["has_info"][0]


def test_writes_mapped_addresses_as_ipv4():
    assert address_text(AF_INET6, bytes(10) + b"\xff\xff" + bytes([10, 0, 0, 7])) == "10.0.0.7"
    assert address_text(AF_INET6, bytes(15) + b"\x01") == "::1"
    assert address_text(AF_INET, bytes([192, 168, 3, 4]) + bytes(12)) == "192.168.3.4"


def test_takes_syn_and_fin_out_of_the_byte_counts():
    infos = [
        (1, {"bytes_acked": 101, "bytes_sent": 100}),  # opened by us: the SYN is in
        (5, {"bytes_acked": 102, "bytes_sent": 100}),  # FIN_WAIT2: SYN and FIN
        (1, {"bytes_acked": 61, "bytes_sent": 100, "unacked": 2}),  # in flight: 60 of 100 have arrived
    ]
    table = decode(b"".join(message(state=state, info=tcp_info(**fields)) for state, fields in infos))
    active = np.zeros(3, dtype=np.bool_)
    assert payload_sent(table, active).tolist() == [100, 100, 60]
    assert payload_sent(table[2:], ~active[2:]).tolist() == [61]
    received = decode(b"".join(message(state=state, info=tcp_info(bytes_received=51)) for state in (1, 8)))
    assert payload_received(received).tolist() == [51, 50]  # CLOSE_WAIT: the peer's FIN is in


def test_a_retransmission_counts_once():
    table = decode(message(info=tcp_info(bytes_acked=101, bytes_sent=150, bytes_retrans=50)))
    assert payload_sent(table, np.zeros(1, dtype=np.bool_)).tolist() == [100]


def test_knows_a_remnant_from_a_connection_that_is_half_closed():
    data = (
        message(state=6, inode=0)
        + message(state=5, inode=0)
        + message(state=5, inode=3, info=tcp_info())
        + message(state=1, info=tcp_info())
    )
    assert is_remnant(decode(data)).tolist() == [True, True, False, False]


def test_says_which_error_the_kernel_gave():
    with pytest.raises(NetlinkRefusedError) as caught:
        decode(struct.pack("=IHHIIi", 20, 2, 0, 1, 0, -22))
    assert caught.value.errno == 22


def test_refuses_messages_that_are_cut_or_lie_about_their_length():
    whole = message(info=tcp_info())
    for bad in (whole[:-9], whole[:10], struct.pack("=I", 9999) + whole[4:], struct.pack("=I", 3) + whole[4:]):
        with pytest.raises(SockDiagError):
            decode(bad)


def run_filter(code, sport, dport):
    """`inet_diag_bc_run` of net/ipv4/inet_diag.c, retold."""
    at, left = 0, len(code)
    while left > 0:
        operation, yes, no = struct.unpack_from("=BBH", code, at)
        value = struct.unpack_from("=BBH", code, at + 4)[2] if operation in (11, 12) else None
        good = {1: False, 11: sport == value, 12: dport == value}[operation]
        step = yes if good else no
        left -= step
        at += step
    return left == 0


@given(st.sets(st.integers(1, 65535), min_size=1, max_size=20), st.integers(1, 65535), st.integers(1, 65535))
@settings(max_examples=60, deadline=None)
def test_the_filter_lets_through_exactly_the_sockets_that_touch_a_port(ports, sport, dport):
    code = port_filter(ports)
    assert run_filter(code, sport, dport) == (sport in ports or dport in ports)
    for port in ports:
        assert run_filter(code, port, dport)
        assert run_filter(code, sport, port)


def test_a_request_names_its_length_and_asks_for_tcp_info():
    for data in (request(AF_INET), request(AF_INET6, ports=[80, 443])):
        length, kind, flags, _, _ = struct.unpack_from("=IHHII", data)
        assert (length, kind, flags) == (len(data), 20, 0x301)
        assert data[18] & 0b10


@given(st.binary(max_size=600))
@settings(max_examples=300, deadline=None)
def test_noise_is_refused_and_never_crashes(data):
    with contextlib.suppress(SockDiagError):
        decode(data)


@given(st.integers(0, 400), st.binary(min_size=1, max_size=4), st.integers(104, 300))
@settings(max_examples=300, deadline=None)
def test_damaged_messages_are_refused_or_read_and_never_crash(at, noise, size):
    data = bytearray(message(info=tcp_info(size=size)) * 3 + DONE)
    at %= len(data)
    data[at : at + len(noise)] = noise
    try:
        for state in decode(bytes(data))["state"]:
            assert 0 <= state <= 255
    except SockDiagError:
        pass
    assert STATES[10] == "LISTEN"


def test_long_and_short_messages_that_take_turns_are_all_read():
    turns = b"".join(
        message(sport=n, info=tcp_info(bytes_received=n)) + message(sport=n, state=6) * (n % 3) for n in range(1, 1500)
    )
    table = decode(turns)
    assert len(table) == 1499 + sum(n % 3 for n in range(1, 1500))
    full = table[table["has_info"]]
    assert full["sport"].tolist() == full["bytes_received"].tolist() == list(range(1, 1500))


def test_as_many_layouts_as_messages_are_read_without_end_of_the_stack():
    extra = [struct.pack("=HH", 4, n) for n in range(100, 1400)]  # an empty attribute of another kind in each
    table = decode(b"".join(message(extra=one, info=tcp_info(bytes_received=5)) for one in extra))
    assert (table["bytes_received"] == 5).all()
    assert len(table) == 1300


@given(st.lists(st.sampled_from([message(info=tcp_info()), message(), DONE[:16]]), max_size=30), st.data())
@settings(max_examples=200, deadline=None)
def test_messages_cut_at_any_byte_are_refused_or_read(parts, data):
    whole = b"".join(parts)
    cut = data.draw(st.integers(0, len(whole)))
    with contextlib.suppress(SockDiagError):
        assert len(decode(whole[:cut])) <= len(parts)
