"""The harness against an engine that misbehaves on request; whatever comes, the run ends and counts it right."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from urllib.request import urlopen

import msgspec
import pytest

from fakes.start import eventually, fake_engine, rehearsed_proxy
from vindicate.errors import CannotError, EngineError, MisuseError
from vindicate.load.plan import LoadPlan
from vindicate.load.run import run_load_blocking
from vindicate.record.load import LoadSummary, RequestRecord


def plan(engine, **fields):
    given = {"model": "fake", "levels": (2,), "requests_per_level": 6, "stall_after_s": 0.5, "seed": 1, **fields}
    return LoadPlan(url=engine.url, **given)


def lines(folder):
    return [
        msgspec.json.decode(line, type=RequestRecord) for line in (folder / "requests.jsonl").read_bytes().splitlines()
    ]


def command(*words, **more):
    return subprocess.Popen(
        [sys.executable, "-m", "vindicate", "load", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


# ---- what each kind of broken stream is called ------------------------------------------------------------------

BROKEN = [
    (("--accept-only",), "stalled", "no_headers"),
    (("--stall-at", 0), "stalled", "no_headers"),
    (("--stall-at", 3), "stalled", "stalled"),
    (("--no-done",), "stalled", "no_end"),
    (("--no-done", "--heartbeat", 0.1), "stalled", "no_end"),
    (("--stall-at", 3, "--heartbeat", 0.1), "stalled", "stalled"),
    (("--no-end",), "stalled", "no_end"),
    (("--truncate",), "truncated", "truncated"),
    (("--cut",), "truncated", "truncated"),
    (("--reset",), "failed", "reset"),
    (("--garbage",), "failed", "garbage"),
    (("--not-sse",), "failed", "not_sse"),
    (("--error-event",), "failed", "error_event"),
    (("--abort",), "failed", "aborted"),
    (("--endless",), "failed", "over_length"),
    (("--http-error", 503), "failed", "http_503"),
]


@pytest.mark.parametrize(("switches", "outcome", "error"), BROKEN, ids=str)
def test_a_broken_stream_is_counted_by_its_kind_and_never_as_completed(switches, outcome, error, tmp_path):
    with fake_engine(*switches, "--every", 2) as engine:
        summary = run_load_blocking(plan(engine, requests_per_level=2, levels=(1,)), out=tmp_path / "run")
    level = summary.levels[0]
    wrong = 2 if switches[0] == "--accept-only" else 1
    assert level.errors == {error: wrong}
    assert getattr(level, outcome) == wrong
    assert level.completed == 2 - wrong
    assert [record.error for record in lines(tmp_path / "run")] == [None, error] if wrong == 1 else [error, error]


def test_a_stalled_stream_is_reported_with_its_age_and_its_place(tmp_path):
    with fake_engine("--stall-at", 3, "--every", 2) as engine:
        summary = run_load_blocking(plan(engine), out=tmp_path / "run")
    stalled = [record for record in lines(tmp_path / "run") if record.outcome == "stalled"]
    assert len(stalled) == summary.levels[0].stalled == 3
    for record in stalled:
        assert 0.5 <= record.stall_age_s <= record.e2e_s
        assert record.n_tokens == 3
        assert record.detail == "silent after 3 tokens"
    assert sorted(summary.levels[0].stall_ages_s) == sorted(record.stall_age_s for record in stalled)


def test_a_session_that_stalled_is_over_and_another_takes_its_slot(tmp_path):
    with fake_engine("--stall-at", 3, "--every", 4) as engine:
        run_load_blocking(plan(engine, levels=(1,), requests_per_level=8, rounds=50), out=tmp_path / "run")
    assert [(record.session, record.round, record.outcome == "stalled") for record in lines(tmp_path / "run")] == [
        (0, 1, False), (0, 2, False), (0, 3, False), (0, 4, True), (1, 1, False), (1, 2, False), (1, 3, False), (1, 4, True),
    ]  # fmt: skip


def test_a_target_that_only_stalls_ends_the_run_early_and_says_so():
    notes = []
    with fake_engine("--accept-only") as engine:
        summary = run_load_blocking(
            plan(engine, requests_per_level=1000, levels=(2, 4), stall_after_s=0.2),
            on_progress=lambda progress: notes.append(progress.note),
        )
    assert len(summary.levels) == 1
    assert summary.levels[0].requests <= 6
    assert not summary.complete
    assert "4 streams in a row stalled" in summary.ended_early
    assert any(note and "no more are started" in note for note in notes)


def test_a_stream_that_is_lively_for_ever_meets_its_deadline():
    with fake_engine("--itl", 0.02, "--tokens", 2000) as engine:
        summary = run_load_blocking(plan(engine, max_tokens=2000, requests_per_level=1, levels=(1,), deadline_s=0.4))
    assert summary.levels[0].errors == {"deadline": 1}


def test_an_engine_that_dies_in_the_middle_leaves_truncated_then_refused():
    with fake_engine("--die-after-tokens", 30, "--itl", 0.005) as engine:
        summary = run_load_blocking(plan(engine))
    level = summary.levels[0]
    assert level.errors == {"refused": level.failed, "truncated": level.truncated}
    assert level.completed + level.failed + level.truncated == 6
    assert level.truncated == 2


# ---- what is sent, and what is measured --------------------------------------------------------------------------


def test_history_grows_and_every_answer_is_recalled(tmp_path):
    with fake_engine() as engine:
        summary = run_load_blocking(plan(engine, rounds=5, requests_per_level=None), out=tmp_path / "run")
    level = summary.levels[0]
    assert (level.requests, level.completed, level.recall_asked, level.recall_failed) == (10, 10, 10, 0)
    sizes = [
        record.sent_bytes
        for record in sorted(lines(tmp_path / "run"), key=lambda record: (record.session, record.round))
    ]
    assert sizes[:5] == sorted(sizes[:5])
    assert sizes[4] > 3 * sizes[0]


def test_an_engine_that_forgot_the_context_fails_the_recall_and_nothing_else():
    with fake_engine("--forget") as engine:
        level = run_load_blocking(plan(engine)).levels[0]
    assert (level.completed, level.recall_asked, level.recall_failed, level.errors) == (6, 6, 6, {})


def test_abandoned_streams_are_cancelled_neither_failed_nor_completed():
    with fake_engine("--itl", 0.01) as engine:
        level = run_load_blocking(plan(engine, cancel_share=1.0)).levels[0]
        assert (level.cancelled, level.completed, level.failed, level.errors) == (6, 0, 0, {})


def test_latencies_are_those_of_the_engine():
    with fake_engine("--delay-first", 0.1, "--itl", 0.02, "--tokens", 11) as engine:
        level = run_load_blocking(plan(engine, levels=(4,), requests_per_level=40)).levels[0]
    # Never less than the engine's own pace; how much more is the machine's doing, and the parts must still make up the whole.
    assert level.ttft_ms.p50 >= 100
    assert level.itl_ms.p50 >= 20
    assert level.e2e_ms.mean == pytest.approx(level.ttft_ms.mean + 10 * level.itl_ms.mean, rel=0.05)
    assert level.ttft_ms.p90 is not None
    assert level.ttft_ms.p95 is None
    assert 3.5 < level.achieved_concurrency <= 4.0
    assert level.peak_concurrency == 4
    assert level.output_tok_per_s == pytest.approx(4 * 11 / (level.e2e_ms.mean / 1000), rel=0.1)


def test_crlf_framing_and_one_request_a_connection_change_nothing():
    with fake_engine("--crlf", "--close") as engine:
        level = run_load_blocking(plan(engine)).levels[0]
    assert (level.completed, level.recall_failed) == (6, 0)


def test_several_levels_run_one_after_another_and_the_summary_is_there_after_each(tmp_path):
    found = []

    def look(progress):
        found.append(msgspec.json.decode((tmp_path / "run/summary.json").read_bytes(), type=LoadSummary))

    with fake_engine() as engine:
        summary = run_load_blocking(plan(engine, levels=(1, 3)), out=tmp_path / "run", on_progress=look)
    assert [len(seen.levels) for seen in found] == [0] * 6 + [1] * 6
    assert not found[0].complete
    final = msgspec.json.decode((tmp_path / "run/summary.json").read_bytes(), type=LoadSummary)
    assert final == summary
    assert [level.level for level in final.levels] == [1, 3]
    assert final.complete
    assert final.seed == 1


def test_a_duration_ends_a_level(tmp_path):
    with fake_engine("--itl", 0.01) as engine:
        summary = run_load_blocking(plan(engine, requests_per_level=None, duration_s=1.0), out=tmp_path / "run")
    starts = [record.start_s for record in lines(tmp_path / "run")]
    assert 0.5 < max(starts) - min(starts) <= 1.0
    assert summary.complete


def test_96_streams_at_a_thousand_tokens_a_second_need_less_than_half_a_core():
    with fake_engine("--itl", 0.096, "--tokens", 32) as engine:
        summary = run_load_blocking(plan(engine, levels=(96,), requests_per_level=192, stall_after_s=20.0))
    level = summary.levels[0]
    assert level.completed == 192
    assert level.output_tok_per_s > 500
    assert summary.client_cpu_s < 0.5 * level.duration_s


# ---- errors before anything is sent ------------------------------------------------------------------------------


def test_a_refused_connection_names_the_url_and_the_next_command():
    with pytest.raises(EngineError, match=r"http://127\.0\.0\.1:1 does not take connections") as caught:
        run_load_blocking(LoadPlan(url="http://127.0.0.1:1", model="m"))
    assert "vindicate diagnose http://127.0.0.1:1" in caught.value.remedy


def test_the_model_defaults_to_the_first_that_the_server_lists():
    with fake_engine() as engine:
        assert run_load_blocking(plan(engine, model=None)).model == "fake"


def test_a_server_that_lists_no_model_asks_for_one(monkeypatch):
    from vindicate.load import run

    monkeypatch.setattr(run, "_CONNECT_S", 0.3)
    with fake_engine("--accept-only") as engine, pytest.raises(EngineError, match="did not answer") as caught:
        run_load_blocking(plan(engine, model=None))
    assert "--model" in caught.value.remedy


def test_a_folder_that_holds_a_run_is_not_mixed_with_another(tmp_path):
    with fake_engine() as engine:
        run_load_blocking(plan(engine), out=tmp_path)
        with pytest.raises(MisuseError, match="already holds a run"):
            run_load_blocking(plan(engine), out=tmp_path)


def test_a_folder_that_cannot_be_made_is_named_before_anything_is_sent(tmp_path):
    (tmp_path / "file").write_text("")
    with fake_engine() as engine, pytest.raises((CannotError, MisuseError), match="file"):
        run_load_blocking(plan(engine), out=tmp_path / "file" / "run")


def test_a_full_disk_ends_the_run_names_the_file_and_keeps_what_was_written(tmp_path):
    def small_files_only():
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))

    with fake_engine() as engine:
        words = [engine.url, "--model", "m", "--requests", 500, "--out", tmp_path / "run"]
        process = command(*words, preexec_fn=small_files_only)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 4
    assert "requests.jsonl" in err
    assert "Traceback" not in err
    whole = (tmp_path / "run/requests.jsonl").read_bytes().split(b"\n")[:-1]
    assert len([msgspec.json.decode(line, type=RequestRecord) for line in whole]) >= 3


# ---- the command -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_it_at_once_with_partial_results_and_130(number, tmp_path):
    with fake_engine("--stall-at", 3, "--every", 5) as engine:
        words = [
            engine.url,
            "--model",
            "m",
            "--requests",
            500,
            "--concurrency",
            2,
            "--stall-after",
            "60s",
            "--out",
            tmp_path,
        ]
        process = command(*words)
        eventually(lambda: (tmp_path / "requests.jsonl").exists() and len(lines(tmp_path)) >= 4)
        # Both slots have met the stall when the engine holds two requests that it began and will not end.
        eventually(lambda: (seen := json.load(urlopen(f"{engine.url}/seen")))["running"] == 2 and seen["requests"] >= 6)
        process.send_signal(number)
        _, err = process.communicate(timeout=30)  # far less than the stall limit: it did not wait for the streams
    assert process.returncode == 130
    assert "Traceback" not in err
    assert str(tmp_path) in err
    summary = msgspec.json.decode((tmp_path / "summary.json").read_bytes(), type=LoadSummary)
    records = lines(tmp_path)
    assert (summary.complete, summary.ended_early) == (False, "interrupted")
    assert summary.levels[0].requests == len(records)
    interrupted = [record for record in records if record.error == "interrupted"]
    assert len(interrupted) == 2
    assert all(0 <= record.stall_age_s < 60 for record in interrupted)


def test_kill_9_keeps_every_finished_line(tmp_path):
    with fake_engine("--itl", 0.005) as engine:
        process = command(engine.url, "--model", "m", "--requests", 5000, "--out", tmp_path)
        eventually(lambda: (tmp_path / "requests.jsonl").exists() and len(lines(tmp_path)) >= 20)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=10)
    assert len(lines(tmp_path)) >= 20
    summary = msgspec.json.decode((tmp_path / "summary.json").read_bytes(), type=LoadSummary)
    assert not summary.complete


def test_a_good_run_exits_0_and_prints_one_json_document(tmp_path):
    with fake_engine() as engine:
        process = command(engine.url, "--concurrency", 2, "--rounds", 2, "--json", cwd=tmp_path)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    summary = msgspec.json.decode(out, type=LoadSummary)
    assert (summary.schema, summary.levels[0].completed) == ("vindicate.load/1", 4)
    assert (tmp_path / ".vindicate/load").is_dir()
    assert err == ""


@pytest.mark.parametrize("switch", ["--truncate", "--forget"])
def test_a_run_with_broken_or_wrong_answers_exits_1(switch, tmp_path):
    with fake_engine(switch) as engine:
        process = command(engine.url, "--concurrency", 2, "--rounds", 2, cwd=tmp_path)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 1, err
    assert ("vindicate diagnose" in out) == (switch == "--truncate")


def test_the_entry_of_the_stack_is_the_default_target(tmp_path):
    with fake_engine() as engine:
        (tmp_path / "vindicate.toml").write_text(
            f'[services.front]\nrole = "engine"\nurl = "{engine.url}"\napi_key_env = "FRONT_KEY"\n'
        )
        environment = {**os.environ, "FRONT_KEY": "k"}
        process = command("--concurrency", 1, "--rounds", 1, "--json", cwd=tmp_path, env=environment)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert json.loads(out)["url"] == engine.url


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["not a url"], 2, "not a url"),
        (["http://127.0.0.1:1"], 4, "connection refused"),
        (["http://h:1", "--levels", "8,x"], 2, "8,x"),
        (["http://h:1", "--levels", "8", "--concurrency", "2"], 2, "leave one out"),
        (["http://h:1", "--sessions", "/no/such"], 2, "/no/such"),
        (["http://h:1", "--cancel-share", "2"], 2, "cancel-share"),
    ],
)
def test_what_cannot_be_is_refused_with_the_value_seen(words, code, says, tmp_path):
    process = command(*words, cwd=tmp_path)
    _, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert says in err
    assert "Traceback" not in err


# ---- the story ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["pinned", "permit"])
def test_sessions_that_interrupt_starve_the_faulty_proxy_and_freeze(variant):
    fault = ("--fault", "proxy.connector_starvation", "--variant", variant)
    with fake_engine("--itl", 0.01) as engine, rehearsed_proxy(engine.url, *fault) as proxy:
        summary = run_load_blocking(
            plan(proxy, cancel_share=0.3, levels=(4,), requests_per_level=400, stall_after_s=2.0)
        )
        level = summary.levels[0]
        assert level.cancelled >= 1
        assert level.errors == {"no_headers": level.stalled}
        assert summary.ended_early is not None
        direct = run_load_blocking(plan(engine))
        assert direct.levels[0].completed == 6


def test_the_same_sessions_pass_a_correct_proxy():
    with fake_engine("--itl", 0.01) as engine, rehearsed_proxy(engine.url, "--fault", "none") as proxy:
        level = run_load_blocking(
            plan(proxy, cancel_share=0.3, levels=(8,), requests_per_level=120, stall_after_s=20)
        ).levels[0]
    assert level.completed + level.cancelled == 120
    assert level.cancelled > 15
    assert level.errors == {}


def test_a_run_in_another_thread_works_too():
    found = []
    with fake_engine() as engine:
        thread = threading.Thread(target=lambda: found.append(run_load_blocking(plan(engine))))
        thread.start()
        thread.join(20)
    assert found[0].levels[0].completed == 6
