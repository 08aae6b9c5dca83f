import json

from hypothesis import given
from hypothesis import strategies as st

from vindicate.wire.openai import OpenAIStream, Usage


def data(document):
    text = document if isinstance(document, str) else json.dumps(document, ensure_ascii=False)
    return f"data: {text}\n\n".encode()


def delta(**fields):
    return data({"choices": [{"index": 0, "delta": fields}]})


WHOLE = (
    delta(role="assistant", content="")
    + delta(content="VAL-")
    + delta(content="7é")
    + data({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    + data({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}})
    + data("[DONE]")
)


@given(st.integers(0, len(WHOLE)), st.integers(0, len(WHOLE)))
def test_reads_a_whole_stream_cut_anywhere(first, second):
    low, high = sorted((first, second))
    stream = OpenAIStream()
    n_new = sum(stream.feed(piece) for piece in (WHOLE[:low], WHOLE[low:high], WHOLE[high:]))
    assert (stream.text, stream.finish_reason, stream.usage, stream.done) == ("VAL-7é", "stop", Usage(9, 3), True)
    assert (n_new, stream.n_token_chunks, stream.n_tokens, stream.n_events) == (2, 2, 3, 6)


def test_a_role_alone_is_no_token_but_reasoning_and_tool_calls_are():
    stream = OpenAIStream()
    assert stream.feed(delta(role="assistant")) == 0
    assert stream.feed(delta(reasoning_content="hm") + delta(tool_calls=[{"index": 0}])) == 2
    assert stream.text == ""


def test_counts_chunks_where_the_server_gives_no_usage():
    stream = OpenAIStream()
    stream.feed(delta(content="a") + delta(content="b"))
    assert stream.n_tokens == 2


def test_reads_plain_completions_too():
    stream = OpenAIStream()
    assert stream.feed(data({"choices": [{"text": "hi", "finish_reason": None}]})) == 1
    assert stream.text == "hi"


def test_an_error_object_inside_the_stream_is_an_error_and_no_token():
    stream = OpenAIStream()
    assert stream.feed(data({"error": {"message": "out of memory, api_key=sk-verysecret123"}})) == 0
    assert stream.error is not None
    assert stream.error.startswith("out of memory")
    assert "verysecret" not in stream.error


def test_an_object_that_calls_itself_an_error_is_one():
    stream = OpenAIStream()
    stream.feed(data({"object": "error", "message": "too long"}))
    assert stream.error == "too long"


def test_an_event_named_error_is_an_error():
    stream = OpenAIStream()
    stream.feed(b"event: error\ndata: overloaded\n\n")
    assert stream.error == "overloaded"


@given(st.one_of(st.text(min_size=1), st.integers(), st.lists(st.integers()), st.none()))
def test_whatever_is_no_object_is_garbage_and_never_raises(value):
    stream = OpenAIStream()
    stream.feed(data(value if isinstance(value, str) and "\n" not in value and "\r" not in value else [value]))
    assert stream.n_token_chunks == 0
    assert not stream.texts


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["choices", "delta", "content", "usage", "finish_reason", "error"]), inner
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_is_survived(document):
    OpenAIStream().feed(data(json.dumps(document)))


def test_heartbeats_are_counted_apart_from_events():
    stream = OpenAIStream()
    stream.feed(b": ping\n\n" + delta(content="a"))
    assert (stream.n_comments, stream.n_events) == (1, 1)


def test_brackets_nested_too_deep_are_garbage_and_no_crash():
    stream = OpenAIStream()
    assert stream.feed(data("[" * 10_000 + "]" * 10_000)) == 0
    assert stream.garbage is not None


def test_cached_prompt_tokens_are_read_where_the_server_tells_them():
    stream = OpenAIStream()
    stream.take(
        '{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}'
    )
    assert stream.usage == Usage(9, 3, 4)
    for strange in ("null", "7", "[]", '{"cached_tokens":-1}', '{"cached_tokens":"4"}'):
        stream.take(
            f'{{"choices":[],"usage":{{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{strange}}}}}'
        )
        assert stream.usage == Usage(9, 3, None)
