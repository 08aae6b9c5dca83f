"""A whole capture of small real processes: what moves, what is ours, what is held back, and that it always ends in time."""

import contextlib
import socket
import threading
import time

import msgspec
import pytest

from fakes.observed_start import observed, service, stack
from vindicate.errors import MisuseError
from vindicate.observe.capture_file import load_capture, save_capture
from vindicate.observe.record import record_capture
from vindicate.stack.model import Client, Knob, Launcher

SECRET = "sk-planted-0123456789abcdef"


@contextlib.contextmanager
def talking(port, *, request=b"hello", n=1):
    """Connections of ours that sent one request each and wait."""
    socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(n)]
    for one in socks:
        one.sendall(request)
    try:
        yield socks
    finally:
        for one in socks:
            one.close()


def between(capture, local=None, remote=None, *, ours=False):
    return [
        one
        for one in capture.connections
        if one.ours == ours
        and (local is None or one.local.port == local)
        and (remote is None or one.remote.port == remote)
    ]


def old(connections):
    """Those that were there before the capture; a relay passes our scrapes on, too."""
    return [one for one in connections if not one.fresh]


def test_a_request_that_a_relay_handed_on_is_seen_on_all_four_ends(tmp_path):
    with observed(tmp_path, "silent") as sink, observed(tmp_path, "relay", "--upstream", sink.port) as relay:
        chain = stack(service("proxy", "proxy", relay, ["engine"]), service("engine", "engine", sink))
        with talking(relay.port, request=b"x" * 321):
            capture = record_capture(chain, window_s=0.6, probe=False)
    for port in (relay.port, sink.port):
        (server,), (caller,) = old(between(capture, local=port)), old(between(capture, remote=port))
        assert server.samples[-1].rx == caller.samples[-1].tx == 321
        assert server.samples[-1].tx == 0
        assert not server.fresh
        assert not server.closed
        assert (server.local, server.remote) == (caller.remote, caller.local)
    assert (
        old(between(capture, local=relay.port))[0].pids
        == old(between(capture, remote=sink.port))[0].pids
        == (relay.pid,)
    )
    assert old(between(capture, local=sink.port))[0].pids == (sink.pid,)


def test_bytes_of_a_connection_that_lived_between_two_looks_are_counted(tmp_path):
    with observed(tmp_path, "engine") as engine:
        watching = threading.Event()

        def burst():
            watching.wait(10)
            for _ in range(5):
                with socket.create_connection(("127.0.0.1", engine.port)) as one:
                    one.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                    while one.recv(4096):
                        pass

        thread = threading.Thread(target=burst)
        thread.start()
        capture = record_capture(
            stack(service("engine", "engine", engine)),
            window_s=1.5,
            probe=False,
            samples_per_s=2,
            on_progress=lambda *_: watching.set(),
        )
        thread.join()
    served = between(capture, local=engine.port)
    assert len(served) == 5
    for one in served:
        assert one.fresh
        assert one.closed
        assert one.samples[-1].counted
        (peer,) = [other for other in between(capture, remote=engine.port) if other.local == one.remote]
        assert one.samples[-1].rx == peer.samples[-1].tx == 33
        assert one.samples[-1].tx == peer.samples[-1].rx > 0


def test_our_own_probes_and_scrapes_are_marked_on_both_ends(tmp_path):
    with observed(tmp_path, "engine") as engine:
        capture = record_capture(stack(service("engine", "engine", engine)), window_s=1.5)
    assert capture.probes[0].error is None
    assert between(capture) == []
    marked = between(capture, ours=True)
    assert {one.local.port == engine.port for one in marked} == {True, False}
    assert not [one for one in capture.services if one.client]


def test_unread_bytes_and_a_full_accept_queue_are_seen(tmp_path):
    with observed(tmp_path, "deaf") as deaf:
        socks = []
        for _ in range(3):
            one = socket.create_connection(("127.0.0.1", deaf.port))
            one.sendall(b"z" * 100)
            socks.append(one)
        capture = record_capture(stack(service("engine", "engine", deaf)), window_s=0.5, probe=False)
        for one in socks:
            one.close()
    listener = next(one for one in capture.listeners if one.local.port == deaf.port)
    assert listener.pids == (deaf.pid,)
    assert min(listener.waiting) >= 3
    assert listener.backlog == 4
    assert [one.samples[-1].unread for one in between(capture, local=deaf.port) if one.samples[-1].rx == 100] == [
        100
    ] * 3


def test_a_probe_says_how_far_it_came(tmp_path):
    with observed(tmp_path, "stall") as stalled, observed(tmp_path, "relay", "--upstream", stalled.port) as relay:
        chain = stack(service("proxy", "proxy", relay, ["engine"]), service("engine", "engine", stalled))
        capture = record_capture(chain, window_s=1.5, probe_deadline_s=1.0)
    by_target = {one.target: one for one in capture.probes}
    assert by_target["proxy"].covers == ("proxy", "engine")
    for made in by_target.values():
        assert (made.error, made.status, made.n_tokens, made.terminated) == ("stalled", 200, 2, False)
        assert made.connect_s < made.first_byte_s < made.total_s
        assert 0.9 <= made.total_s <= 1.5
        assert made.request_bytes > 100
        assert made.response_bytes > 100


def test_a_good_probe_is_within_the_token_budget_and_ends_whole(tmp_path):
    with observed(tmp_path, "engine") as engine:
        capture = record_capture(stack(service("engine", "engine", engine)), window_s=0.9, probe_tokens=6)
    (made,) = capture.probes
    assert (made.error, made.terminated, made.finish_reason, made.n_tokens) == (None, True, "length", 3)
    assert made.n_events == 5
    assert len(made.gaps_s) >= 2
    assert made.token_times_s is not None
    assert len(made.token_times_s) == 3
    assert (made.n_empty, made.n_comments) == (1, 0)


def test_the_entry_is_asked_again_only_when_its_first_answer_came_whole(tmp_path):
    with (
        observed(tmp_path, "engine") as engine,
        observed(tmp_path, "relay", "--upstream", engine.port) as good,
        observed(tmp_path, "silent") as dead_end,
        observed(tmp_path, "relay", "--upstream", dead_end.port) as stuck,
    ):
        sent = []
        for relay, below in ((good, engine), (stuck, dead_end)):
            chain = stack(service("proxy", "proxy", relay, ["engine"]), service("engine", "engine", below))
            sent.append([one.target for one in record_capture(chain, window_s=1.5, probe_deadline_s=1.0).probes])
    assert [targets.count("proxy") for targets in sent] == [3, 1]


def test_heartbeats_are_counted_apart_from_tokens(tmp_path):
    with observed(tmp_path, "ping") as engine:
        capture = record_capture(stack(service("engine", "engine", engine)), window_s=0.9, probe_deadline_s=0.8)
    (made,) = capture.probes
    assert (made.error, made.n_events, made.token_times_s, made.n_tokens) == ("stalled", 0, (), 0)
    assert made.n_comments >= 3
    assert len(made.gaps_s) >= 2


def test_a_pair_is_probed_as_a_pair(tmp_path):
    with (
        observed(tmp_path, "engine", "--arg", "prefill") as prefill,
        observed(tmp_path, "stall", "--arg", "decode") as decode,
    ):
        chain = stack(
            service("router", "router", prefill, ["prefill", "decode"]),
            service("prefill", "prefill", prefill, engine="sglang", bootstrap_port=8998),
            service("decode", "decode", decode, engine="sglang"),
        )
        capture = record_capture(chain, window_s=1.2, probe_deadline_s=1.0)
    pair = next(one for one in capture.probes if one.shape == "pd_pair")
    assert (pair.target, pair.covers, pair.error) == ("decode", ("decode", "prefill"), "stalled")
    assert pair.legs == {"prefill": None, "decode": "stalled"}


def test_without_probes_none_is_sent_and_that_is_said(tmp_path):
    with observed(tmp_path, "engine") as engine:
        capture = record_capture(stack(service("engine", "engine", engine)), window_s=0.4, probe=False)
    assert capture.probes == ()
    assert any("no probes" in text for text in capture.blind)


def test_metrics_loads_and_models_are_read_several_times(tmp_path):
    with observed(tmp_path, "engine") as engine:
        capture = record_capture(stack(service("engine", "engine", engine, engine="sglang")), window_s=1.2, probe=False)
    pages = [one for one in capture.scrapes if one.kind == "metrics"]
    assert 2 <= len(pages) <= 4  # a busy machine leaves some out
    assert [(value.name, value.value) for value in pages[0].values] == [
        ("sglang:num_running_reqs", 1.0), ("sglang:generation_tokens_total", 12.0),
    ]  # fmt: skip
    loads = [one for one in capture.scrapes if one.kind == "loads"]
    assert 2 <= len(loads) <= 4
    assert loads[0].facts["loads.0.num_running_reqs"] == 1
    assert next(one for one in capture.scrapes if one.kind == "models").facts["model"] == "tiny"


def test_no_planted_secret_reaches_the_capture(tmp_path, monkeypatch):
    monkeypatch.setenv("OBSERVED_KEY", SECRET)
    log = tmp_path / "engine.log"
    log.write_text(f"ok\nERROR connection reset by peer, Authorization: Bearer {SECRET}\n")
    with observed(tmp_path, "engine", "--api-key", SECRET) as engine:
        chain = stack(
            service(
                "engine", "engine", engine, engine="sglang", api_key_env="OBSERVED_KEY", launcher=Launcher(log=log)
            ),
            knobs={"OBSERVED_KEY": Knob(name="OBSERVED_KEY", services=("engine",))},
        )
        capture = record_capture(chain, window_s=0.8)
    text = msgspec.json.encode(capture).decode()
    assert SECRET not in text
    assert "planted-plainly" not in text
    assert "--api-key" in text  # the argument list is there, its secret is not
    assert [(one.pattern, one.n_seen) for one in capture.log_lines] == [("reset", 1)]


def test_knobs_and_processes_are_read_and_a_death_in_the_window_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("OBSERVED_KNOB", "512")
    with observed(tmp_path, "engine", "--life", "1.2") as engine:
        chain = stack(
            service("engine", "engine", engine),
            knobs={
                "OBSERVED_KNOB": Knob(name="OBSERVED_KNOB", services=("engine",)),
                "UNSET": Knob(name="UNSET", services=("engine",)),
            },
        )
        capture = record_capture(chain, window_s=2.4, probe=False)
        code = engine.process.wait(10)
    (facts,) = capture.processes
    assert code == 0
    assert (facts.pid, facts.ended, facts.readable) == (engine.pid, True, True)
    assert facts.knobs == {"OBSERVED_KNOB": "512", "UNSET": None}
    assert facts.samples[0].state in "RSD"
    assert facts.samples[0].n_fds > 3
    assert [one.error for one in capture.scrapes if one.kind == "metrics"][-1] == "refused"


def test_a_declared_client_is_named_and_another_one_is_found_by_its_connection(tmp_path):
    with (
        observed(tmp_path, "silent") as engine,
        observed(tmp_path, "relay", "--upstream", engine.port) as caller,
        talking(caller.port),
    ):
        one = stack(service("engine", "engine", engine), clients={"harness": Client(name="harness", pid=caller.pid)})
        declared = record_capture(one, window_s=0.4, probe=False)
        found = record_capture(stack(service("engine", "engine", engine)), window_s=0.4, probe=False)
        given = record_capture(
            stack(service("engine", "engine", engine)), window_s=0.4, probe=False, client_pids=[caller.pid]
        )
    names = [
        [(each.name, each.pids) for each in capture.services if each.client] for capture in (declared, found, given)
    ]
    assert names[0] == [("harness", (caller.pid,))]
    assert names[1] == names[2]
    assert names[1][0][1] == (caller.pid,)
    assert names[1][0][0].startswith("client:")
    assert names[1][0][0].endswith(f":{caller.pid}")


HOSTILE = ("silent", "endless", "huge", "slowloris", "noise", "redirect", "deaf", "hello")


def test_hostile_services_never_carry_it_past_its_deadline(tmp_path):
    with contextlib.ExitStack() as opened:
        servers = {mode: opened.enter_context(observed(tmp_path, mode)) for mode in HOSTILE}
        chain = stack(*(service(mode, "engine", server, engine="sglang") for mode, server in servers.items()))
        began = time.monotonic()
        capture = record_capture(chain, window_s=1.5)
        took = time.monotonic() - began
    assert took < 1.5 + 5
    errors = {
        mode: {one.error for one in capture.scrapes if one.service == mode and one.kind == "metrics"}
        for mode in HOSTILE
    }
    assert errors["silent"] == errors["slowloris"] == {"timeout (no_headers)"}
    assert errors["deaf"] <= {"timeout (no_headers)", "timeout (connect_timeout)"}
    assert errors["endless"] == errors["huge"] == {"too large"}
    assert errors["noise"] <= {"garbage", "reset"}
    assert errors["redirect"] == {"redirect (302), not followed"}
    assert errors["hello"] == {"http 404"}
    assert msgspec.json.decode(msgspec.json.encode(capture), type=type(capture)) == capture
    assert len(msgspec.json.encode(capture)) < 1_000_000


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("silent", "no_headers"),
        ("endless", "garbage"),
        ("noise", "garbage"),
        ("redirect", "http_302"),
        ("hello", "http_404"),
    ],
)
def test_a_probe_of_a_hostile_service_is_named(tmp_path, mode, error):
    with observed(tmp_path, mode) as server:
        capture = record_capture(stack(service("engine", "engine", server)), window_s=0.5, probe_deadline_s=0.5)
    assert capture.probes[0].error in (error, "reset" if mode == "noise" else error)


def test_a_dead_service_gives_a_capture_too():
    with socket.socket() as taken:  # bound and never listening: nobody else gets the port
        taken.bind(("127.0.0.1", 0))
        dead = type("Dead", (), {"url": f"http://127.0.0.1:{taken.getsockname()[1]}"})
        capture = record_capture(stack(service("engine", "engine", dead)), window_s=0.4)
    assert {one.error for one in capture.scrapes} == {"refused"}
    assert {one.error for one in capture.probes} == {"refused"}
    assert capture.services[0].pids == ()


def test_a_capture_survives_a_file_packed_or_plain(tmp_path):
    with observed(tmp_path, "engine") as engine:
        capture = record_capture(stack(service("engine", "engine", engine)), window_s=0.4)
    for name in ("capture.json", "capture.json.gz"):
        save_capture(capture, tmp_path / name)
        assert load_capture(tmp_path / name) == capture
    assert (tmp_path / "capture.json.gz").stat().st_size < (tmp_path / "capture.json").stat().st_size / 3
    assert sorted(one.name for one in tmp_path.iterdir() if "part" in one.name) == []


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b"\x1f\x8b broken", b"\xff\xfe", b'{"schema": "x"}', b"[" * 100_000]
)
def test_a_file_that_is_no_capture_is_refused_with_its_name(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(MisuseError, match=r"other\.json"):
        load_capture(path)


def test_a_window_that_cannot_be_is_refused():
    with pytest.raises(MisuseError, match="-1"):
        record_capture(stack(service("engine", "engine", type("Dead", (), {"url": "http://127.0.0.1:1"}))), window_s=-1)
