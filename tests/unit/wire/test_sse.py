import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vindicate.errors import EngineError
from vindicate.wire.sse import SseEvent, SseParser

LINE_END = st.sampled_from([b"\n", b"\r\n", b"\r"])
TEXT = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)


def cut(data, places):
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[low:high] for low, high in itertools.pairwise(edges)]


@st.composite
def streams(draw):
    """Events, and bytes that carry them, with comments and every legal line end."""
    events, data = [], b"\xef\xbb\xbf" if draw(st.booleans()) else b""
    for _ in range(draw(st.integers(0, 5))):
        end = draw(LINE_END)
        lines = draw(st.lists(TEXT, min_size=1, max_size=3))
        name = draw(st.sampled_from(["", "error", "delta"]))
        if draw(st.booleans()):
            data += b": heartbeat" + end
        if name:
            data += b"event: " + name.encode() + end
        for line in lines:
            space = b" " if line.startswith(" ") or draw(st.booleans()) else b""
            data += b"data:" + space + line.encode() + end
        data += end
        events.append(SseEvent("\n".join(lines), name or "message"))
    return events, data


@given(streams(), st.lists(st.integers(0, 10_000), max_size=8))
def test_events_are_the_same_however_the_bytes_are_cut(stream, places):
    events, data = stream
    parser = SseParser()
    assert [event for piece in cut(data, places) for event in parser.feed(piece)] == events
    assert not parser.pending


@given(streams())
def test_events_are_the_same_one_byte_at_a_time(stream):
    events, data = stream
    parser = SseParser()
    assert [event for index in range(len(data)) for event in parser.feed(data[index : index + 1])] == events


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
def test_any_bytes_give_the_same_events_whole_and_cut(data, places):
    parser = SseParser()
    assert [event for piece in cut(data, places) for event in parser.feed(piece)] == SseParser().feed(data)


def test_a_cr_that_ends_a_read_ends_its_line_at_once():
    parser = SseParser()
    assert parser.feed(b"data: a\r\r") == [SseEvent("a")]
    assert parser.feed(b"\ndata: b\r\n\r\n") == [SseEvent("b")]


def test_a_character_cut_between_reads_stays_whole():
    parser = SseParser()
    bytes_of = "data: 日本\n\n".encode()
    assert parser.feed(bytes_of[:8]) == []
    assert parser.feed(bytes_of[8:]) == [SseEvent("日本")]


def test_comments_are_counted_and_are_no_events():
    parser = SseParser()
    assert parser.feed(b": ping\n\n: ping\n\n") == []
    assert parser.n_comments == 2


def test_an_event_without_its_blank_line_is_pending():
    parser = SseParser()
    assert parser.feed(b"data: half\n") == []
    assert parser.pending


def test_a_line_without_end_is_refused_and_not_kept_for_ever():
    parser = SseParser(max_event_bytes=1000)
    for _ in range(10):
        parser.feed(b"x" * 100)
    with pytest.raises(EngineError, match="no event stream"):
        parser.feed(b"x")


def test_data_lines_without_a_blank_line_are_refused_too():
    parser = SseParser(max_event_bytes=1000)
    for _ in range(100):
        parser.feed(b"data: 0123456789\n")
    with pytest.raises(EngineError, match="no event stream"):
        parser.feed(b"data: 0\n")


def test_a_field_that_the_standard_does_not_know_is_ignored_and_counted():
    parser = SseParser()
    assert parser.feed(b"id: 1\nretry: 5\nfoo: bar\nbaz\ndata: a\n\n") == [SseEvent("a")]
    assert parser.n_strange == 2
