"""Which requests came and have not ended, by an engine's request log."""

import json

import pytest

from vindicate.wire.request_log import read_request_log


def line(event, rid, at="2026-12-01T05:00:00+00:00", **more):
    return f"2026-12-01 05:00:00,123 {json.dumps({'timestamp': at, 'event': event, 'rid': rid, **more})}\n".encode()


def test_keeps_what_came_and_has_not_ended():
    log = read_request_log(
        [line("request.received", "a"), line("request.received", "b"), line("request.finished", "a")]
    )
    assert log.alive == {"b": 1796101200.0}
    assert log.n_lines == 3


def test_finds_the_id_where_it_stands_in_the_request_itself():
    inner = json.dumps({"event": "request.received", "obj": {"rid": ["x", "y"]}}).encode()
    assert list(read_request_log([inner]).alive) == ["x", "y"]


def test_reads_the_lines_of_the_text_form():
    lines = [
        b"[2026-12-01 05:00:00 TP0] Receive: obj=GenerateReqInput(rid='one', text='say rid=\\'two\\'')\n",
        b"[2026-12-01 05:00:01] Receive: obj=GenerateReqInput(rid='two', text='')\n",
        b"[2026-12-01 05:00:02] Finish: obj=GenerateReqInput(rid='one', text=''), out={}\n",
    ]
    log = read_request_log(lines)
    assert list(log.alive) == ["two"]
    assert log.alive["two"] is not None


def test_forgets_what_an_earlier_process_left_open():
    assert read_request_log([line("request.received", "a")], since=1796101201.0).alive == {}


def test_leaves_health_checks_out():
    assert read_request_log([line("request.received", "HEALTH_CHECK_1")]).alive == {}


@pytest.mark.parametrize(
    "junk",
    [b"", b"\xff\xfe", b'{"request.received', b'{"event": "request.received"}', b'"request.received" {"rid": 7}', b'["request.received"] {}',
     b'{"event": ["request.received"], "rid": "a"}', b'{"request.received": ' + b"[" * 100_000],
)  # fmt: skip
def test_passes_over_what_is_no_such_line(junk):
    assert read_request_log([junk]).n_lines == 0


def test_says_that_nothing_is_logged():
    assert read_request_log([b"INFO started\n", b"INFO ready\n"]).n_lines == 0
