import asyncio
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from vindicate.rehearse import relay
from vindicate.rehearse.fault import FAULTS, Fault
from vindicate.rehearse.relay import relayed

BODY = 'data: {"t": "dat"}\n\ndata: {"t": "é data:"}\n\ndata: [DONE]\n\n'.encode()
MARK = b": heartbeat\n\n"


def passed_on(pieces, mechanism, *, number=1, after=0):
    """What a client gets of *pieces*, until the body ends or the first heartbeat comes."""

    async def chunks():
        for piece in pieces:
            yield piece

    async def collect():
        got = []
        async for piece in relayed(chunks(), Fault(mechanism=mechanism, after=after), number):
            got.append(piece)
            if piece == MARK:
                break
        return got

    return asyncio.run(collect())


def cut(places):
    edges = sorted({0, len(BODY), *places})
    return [BODY[low:high] for low, high in pairwise(edges)]


@given(st.lists(st.integers(1, len(BODY) - 1), max_size=6))
def test_the_end_mark_is_swallowed_wherever_it_is_cut_and_nothing_before_it_is(places):
    before, relay.HEARTBEAT_S = relay.HEARTBEAT_S, 0
    try:
        got = passed_on(cut(places), "stream.missing_done_masked_by_heartbeat")
    finally:
        relay.HEARTBEAT_S = before
    assert b"".join(got) == BODY[: BODY.index(b"data: [DONE]")] + MARK


def test_a_body_that_is_no_event_stream_ends_as_it_should():
    assert passed_on([b'{"a": 1}'], "stream.missing_done_masked_by_heartbeat") == [b'{"a": 1}']


def test_buffering_gives_16_kib_at_a_time_and_the_rest_at_the_end():
    got = passed_on([b"x" * 1000] * 20, "proxy.sse_buffering")
    assert [len(piece) for piece in got] == [17_000, 3_000]


@given(st.sampled_from(sorted(FAULTS)), st.lists(st.integers(1, len(BODY) - 1), max_size=6))
def test_a_request_before_the_fault_begins_is_passed_on_untouched(mechanism, places):
    assert passed_on(cut(places), mechanism, number=3, after=3) == cut(places)
