"""However the bytes of a stream are cut, and however many come at once, the same events come out."""

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from vindicate.wire.openai import GenerateStream, OpenAIStream
from vindicate.wire.sse import SseParser


def chunk(**delta):
    return {"model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def event(document, end=b"\n"):
    text = document if isinstance(document, str) else json.dumps(document, ensure_ascii=False)
    return b"data: " + text.encode() + end + end


WHOLE = b"".join(
    [
        event(chunk(role="assistant", content="")),
        event(chunk(content="é🙂")),
        b": ping\n\n",
        event(chunk(content=" b"), end=b"\r\n"),
        event(chunk(reasoning_content="hm")),
        b"data: {\ndata: }\n\n",
        event(chunk(content="\r")),
        event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
        event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}),
        event("[DONE]"),
    ]
)


def state(stream):
    return (
        stream.n_events, stream.n_token_chunks, stream.text, stream.finish_reason, stream.usage, stream.model, stream.done,
        stream.error, stream.garbage, stream.n_comments,
    )  # fmt: skip


def fed(pieces):
    stream = OpenAIStream()
    count = sum(stream.feed(piece) for piece in pieces)
    assert count == stream.n_token_chunks
    return state(stream)


def test_a_cut_at_any_byte_changes_nothing():
    whole = fed([WHOLE])
    assert whole[:4] == (9, 4, "é🙂 b\r", "stop")
    for at in range(len(WHOLE) + 1):
        assert fed([WHOLE[:at], WHOLE[at:]]) == whole


def test_one_byte_at_a_time_changes_nothing():
    assert fed([bytes([byte]) for byte in WHOLE]) == fed([WHOLE])


DOCUMENTS = st.one_of(
    st.builds(lambda text: chunk(content=text), st.text(max_size=6)),
    st.builds(lambda text: chunk(tool_calls=[text]), st.text(max_size=3)),
    st.just({"choices": []}),
    st.just("[DONE]"),
    st.just("{no json"),
    st.just({"error": {"message": "x"}}),
    st.just(chunk(content=["a"])),
    st.just({"choices": [{"text": "plain", "finish_reason": "length"}], "usage": {"completion_tokens": 1}}),
)
EVENTS = st.one_of(
    DOCUMENTS.map(event),
    st.sampled_from(
        [b": ping\n\n", b"\n", b"id: 1\n", b"event: error\n", b"data: {}\n", b"data:{}\n\n", b"data: \xff\n\n"]
    ),
)


@given(st.lists(EVENTS, max_size=8), st.lists(st.integers(0, 400), max_size=8))
def test_the_quick_way_gives_what_the_standard_way_gives_wherever_it_is_cut(events, cuts):
    whole = b"".join(events)
    cuts = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    pieces = [whole[begin:end] for begin, end in pairwise(cuts)] or [b""]
    standard, quick = SseParser(), SseParser()
    slow = [(item.data, item.name) for piece in pieces for item in standard.feed(piece)]
    fast = []
    for piece in pieces:
        texts = quick.plain(piece)
        fast += (
            [(item.data, item.name) for item in quick.feed(piece)]
            if texts is None
            else [(text, "message") for text in texts]
        )
    assert fast == slow
    assert fed(pieces) == fed([bytes([byte]) for byte in whole])


@given(st.lists(EVENTS, min_size=1, max_size=8))
def test_pieces_taken_at_once_give_what_they_give_one_by_one(pieces):
    one, all_ = OpenAIStream(), OpenAIStream()
    counts = all_.feed_each(pieces)
    if counts is None:
        assert state(all_) == state(OpenAIStream())
        return
    assert counts == [one.feed(piece) for piece in pieces]
    assert state(all_) == state(one)


def test_generate_reads_all_text_so_far_and_new_text_alike():
    def meta(count, reason=None):
        return {"meta_info": {"prompt_tokens": 2, "completion_tokens": count, "finish_reason": reason}}

    for texts in (["a", "ab", "ab c"], ["a", "b", " c"]):
        stream = GenerateStream()
        for count, text in enumerate(texts, 1):
            assert stream.feed(event({"text": text, **meta(count, {"type": "length"} if count == 3 else None)})) == 1
        stream.feed(event("[DONE]"))
        assert (stream.text, stream.n_tokens, stream.finish_reason, stream.done) == ("ab c", 3, "length", True)
