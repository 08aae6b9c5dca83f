"""A schedule that waits for nobody, the other interfaces, bounds, and the exports of a run."""

import csv
import json
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fakes.start import fake_engine
from vindicate.errors import MisuseError
from vindicate.load.export import read_run
from vindicate.load.plan import LoadPlan
from vindicate.load.run import run_load_blocking
from vindicate.load.schedule import TraceLine


def open_plan(engine, **fields):
    return LoadPlan(**{"url": engine.url, "model": "fake", "seed": 1, "rounds": 1, "stall_after_s": 5, **fields})


@contextmanager
def canned(*, kind, body):
    """A server that gives each POST one answer; yields its URL and what it was sent."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            seen.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            page = f"sglang:generation_tokens_total {10 + 7 * len(seen)}\n".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *words):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def vindicate(*words, **more):
    argv = [sys.executable, "-m", "vindicate", *map(str, words)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, **more)


def test_requests_leave_when_they_are_due_however_slow_the_server(tmp_path):
    with fake_engine("--delay-first", 0.5, "--tokens", 2) as engine:
        summary = run_load_blocking(
            open_plan(engine, rate=40.0, arrivals="constant", requests_per_level=40), out=tmp_path / "run"
        )
    starts = sorted(record.start_s for record in read_run(tmp_path / "run")[0])
    assert [round(later - starts[0], 3) for later in starts] == [round(number * 0.025, 3) for number in range(40)]
    level = summary.levels[0]
    assert (level.level, level.completed) == (0, 40)
    assert (
        level.peak_concurrency >= 15
    )  # 40 a second for half a second each; in a closed loop nothing would have shown this
    assert level.ttft_ms.mean >= 500
    assert 25 < level.requests_per_s < 55


def test_latency_counts_from_when_it_was_due_though_the_client_itself_was_late(tmp_path, monkeypatch):
    """Coordinated omission: a client that is held up must not hide the wait."""
    import time

    from vindicate.load.connection import Pool

    message = Pool.message

    def slow(self, *words):
        time.sleep(0.02)
        return message(self, *words)

    monkeypatch.setattr(Pool, "message", slow)
    with fake_engine("--tokens", 1) as engine:
        level = run_load_blocking(open_plan(engine, rate=100.0, arrivals="constant", requests_per_level=40)).levels[0]
    assert level.e2e_ms.p90 > 300  # 40 requests that need 20 ms each of a client that should send one in 10 ms
    assert level.sent_after_ms.p90 > 300
    assert any("late in the mean" in warning for warning in level.warnings)


def test_a_trace_is_replayed_at_its_own_times_and_lengths(tmp_path):
    trace = tuple(TraceLine(at_s=at, prompt=f"at {at}", output_length=n) for at, n in ((0.0, 2), (0.2, 3), (0.25, 4)))
    with fake_engine() as engine:
        run_load_blocking(open_plan(engine, trace=trace), out=tmp_path / "run")
    records = sorted(read_run(tmp_path / "run")[0], key=lambda record: record.start_s)
    assert [round(record.start_s - records[0].start_s, 3) for record in records] == [0.0, 0.2, 0.25]
    assert [record.n_tokens for record in records] == [2, 3, 4]


def test_a_rate_without_an_end_is_refused():
    with pytest.raises(MisuseError, match="has no end"):
        LoadPlan(url="http://h:1", rate=1.0)


def test_completions_send_a_prompt_and_read_texts():
    body = b'data: {"choices": [{"text": "a"}]}\n\ndata: {"choices": [{"text": "b", "finish_reason": "length"}]}\n\ndata: [DONE]\n\n'
    with canned(kind="text/event-stream", body=body) as (url, seen):
        level = run_load_blocking(
            LoadPlan(url=url, model="m", levels=(1,), rounds=1, api="completions", seed=1)
        ).levels[0]
    assert (level.completed, level.errors) == (1, {})
    assert seen[0][0] == "/v1/completions"
    assert seen[0][1]["prompt"].startswith("The value of")


def test_generate_speaks_sglang_and_needs_no_model():
    body = b'data: {"text": "a", "meta_info": {"completion_tokens": 1, "finish_reason": {"type": "stop"}}}\n\ndata: [DONE]\n\n'
    with canned(kind="text/event-stream", body=body) as (url, seen):
        level = run_load_blocking(LoadPlan(url=url, levels=(1,), rounds=1, api="generate", seed=1)).levels[0]
    assert (level.completed, level.errors) == (1, {})
    assert (seen[0][0], seen[0][1]["sampling_params"]["max_new_tokens"]) == ("/generate", 64)


def test_an_answer_that_was_not_streamed_has_tokens_and_no_ttft():
    body = b'{"choices": [{"message": {"content": "ab"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 2}}'
    with canned(kind="application/json", body=body) as (url, seen):
        level = run_load_blocking(LoadPlan(url=url, model="m", levels=(1,), rounds=3, streaming=False, seed=1)).levels[
            0
        ]
    assert (level.completed, level.ttft_ms.n, level.e2e_ms.n, level.errors) == (3, 0, 3, {})
    assert level.output_tok_per_s > 0
    assert seen[0][1]["stream"] is False


def test_the_servers_own_count_stands_beside_ours_and_a_difference_is_said():
    body = b'{"choices": [{"message": {"content": "ab"}, "finish_reason": "stop"}], "usage": {"completion_tokens": 2}}'
    with canned(kind="application/json", body=body) as (url, _):
        level = run_load_blocking(LoadPlan(url=url, model="m", levels=(1,), rounds=3, streaming=False, seed=1)).levels[
            0
        ]
    assert (level.tokens, level.server_tokens) == (6, 21)
    assert ["server counted 21 tokens and the client 6" in warning for warning in level.warnings] == [True]


def test_bounds_count_the_good_requests_and_a_broken_one_is_not_good():
    with fake_engine("--itl", 0.02, "--truncate", "--every", 4) as engine:
        kept = LoadPlan(
            url=engine.url, model="m", levels=(1,), requests_per_level=8, seed=1, slo_s={"ttft": 5.0, "itl": 5.0}
        )
        level = run_load_blocking(kept).levels[0]
        broken = LoadPlan(url=engine.url, model="m", levels=(1,), requests_per_level=4, seed=1, slo_s={"itl": 0.01})
        none = run_load_blocking(broken).levels[0]
    assert (level.slo_met, level.slo_pct) == (6, 75.0)
    assert level.goodput_req_per_s > 0
    assert (none.slo_met, none.slo_pct) == (0, 0.0)


def test_the_command_takes_a_rate_bounds_and_exports_what_it_wrote(tmp_path):
    with fake_engine("--truncate", "--every", 5) as engine:
        run = vindicate(
            "load", engine.url, "--model", "m", "--rate", 200, "--requests", 10, "--slo", "ttft=5s,e2e=9s", cwd=tmp_path
        )
    assert run.returncode == 1, run.stderr
    assert "open" in run.stdout
    assert "8 requests kept the bounds (80 %)" in run.stdout
    assert vindicate("load", "export", "--format", "csv", "--out", "rows.csv", cwd=tmp_path).returncode == 0
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert (len(rows), sum(row["outcome"] == "completed" for row in rows)) == (10, 8)
    done = vindicate("load", "export", "--format", "aiperf", "--json", cwd=tmp_path)
    text = Path(json.loads(done.stdout)["file"]).read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    assert sum(line["error"] is None for line in lines) == 8
    assert all("time_to_first_token" in line["metrics"] for line in lines if line["error"] is None)


def test_parquet_holds_the_same_rows_or_says_what_is_missing(tmp_path):
    from vindicate.errors import CannotError
    from vindicate.load.export import export_run

    with fake_engine() as engine:
        run_load_blocking(open_plan(engine, levels=(1,), requests_per_level=2), out=tmp_path / "run")
    records, _ = read_run(tmp_path / "run")
    try:
        from pyarrow import parquet
    except ImportError:
        with pytest.raises(CannotError, match="pyarrow"):
            export_run(records, "parquet", tmp_path / "rows.parquet")
        return
    export_run(records, "parquet", tmp_path / "rows.parquet")
    rows = parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [row["gaps_s"] for row in rows] == [list(record.gaps_s) for record in records]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["http://h:1", "--rate", "0"], "rate"),
        (["http://h:1", "--rate", "2"], "--rate has no end"),
        (["http://h:1", "--rate", "2", "--levels", "3"], "--levels and --rate"),
        (["http://h:1", "--slo", "tttf=1s"], "tttf"),
        (["http://h:1", "--format", "csv"], "without the word export"),
        (["http://h:1", "http://h:2"], "name one URL"),
        (["export", "/no/such", "--format", "csv"], "/no/such"),
        (["export"], "--format"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_so_is_refused(words, says, tmp_path):
    run = vindicate("load", *words, cwd=tmp_path)
    assert run.returncode == 2
    assert says in run.stderr
    assert "Traceback" not in run.stderr
