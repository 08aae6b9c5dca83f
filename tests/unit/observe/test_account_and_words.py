"""The parts of observing that need no host: which looks are kept, whose FIN it was, what is said to be unseen."""

import pytest

from vindicate.observe.account import _Seen, _settle_fins, _thin, _Track
from vindicate.observe.blind import blind_spots
from vindicate.observe.logs import read_log_tail
from vindicate.observe.plan import reading_plan
from vindicate.record.observation import Address, Capture, Listener, Scrape, SeenService
from vindicate.stack.model import Service, Stack

HERE, THERE = Address("127.0.0.1", 8000), Address("127.0.0.1", 40000)
FAR = Address("10.0.0.9", 40000)


def seen(look, rx=0, tx=0, state="ESTABLISHED", unread=0):
    return _Seen(look, look / 4, state, rx, tx, unread, 0, 0.0, 0.0, 0, zero_window=False, counted=True)


def test_a_connection_at_rest_keeps_its_first_and_last_look_only():
    assert [one.look for one in _thin([seen(n) for n in range(1, 41)], 1)] == [1, 40]


def test_both_sides_of_each_move_are_kept():
    looks = [seen(1), seen(2), seen(3), seen(4, rx=9), seen(5, rx=9), seen(6, rx=9)]
    assert [one.look for one in _thin(looks, 1)] == [1, 3, 4, 6]


def test_with_many_connections_all_keep_the_same_looks_and_every_change_of_state():
    looks = [seen(n, rx=n, state="CLOSE_WAIT" if n > 6 else "ESTABLISHED") for n in range(1, 14)]
    assert [one.look for one in _thin(looks, 4)] == [1, 4, 7, 8, 12, 13]


def track(local, remote, *looks):
    return _Track(local, remote, fresh=True, first_s=0, seen=list(looks))


@pytest.mark.parametrize(
    ("peer_sent", "raw", "settled"),
    [(100, 101, 100), (100, 100, 100), (100, 40, 40)],
)
def test_the_other_end_decides_whether_a_fin_was_counted(peer_sent, raw, settled):
    one, other = (
        track(HERE, THERE, seen(3, rx=raw, state="CLOSE")),
        track(THERE, HERE, seen(3, tx=peer_sent, state="CLOSE")),
    )
    _settle_fins([one, other])
    assert one.seen[-1].rx == settled
    assert other.seen[-1].rx == 0


def test_of_a_remote_peer_the_end_that_closed_second_has_counted_its_fin():
    second = track(HERE, FAR, seen(1, rx=50), seen(3, rx=51, state="CLOSE"))
    first = track(HERE, FAR, seen(3, rx=51, state="CLOSE"), seen(4, rx=51, state="TIME_WAIT"))
    _settle_fins([second])
    _settle_fins([first])
    assert (second.seen[-1].rx, first.seen[-1].rx) == (50, 51)


def service(name="decode", engine="sglang", **more):
    fields = {"role": "decode", "url": "http://127.0.0.1:8000", "address": HERE, "upstream": (), "pids": (7,)} | more
    return SeenService(name=name, engine=engine, **fields)


def words(*services, scrapes=(), listeners=(), **more):
    capture = Capture(
        schema="x",
        host="h",
        started_at="",
        window_s=1,
        entry=None,
        services=services,
        scrapes=scrapes,
        listeners=listeners,
    )
    return "\n".join(
        blind_spots(
            capture, **{"probed": True, "counted": True, "n_left_out": 0, "lost": False, "saw_foreign": False} | more
        )
    )


def test_says_nothing_when_all_was_seen():
    assert words(service()) == ""


def test_names_each_gap_and_what_would_close_it():
    listener = Listener(local=HERE, pids=(), backlog=1, waiting=(0,))
    assert "run as root" in words(service(pids=()), listeners=(listener,), saw_foreign=True)
    assert "diagnose capture" in words(service(remote=True))
    assert "TLS" in words(service(url="https://a:1"))
    page = Scrape(service="decode", kind="metrics", url="", t_s=0, took_s=0, status=404, error="http 404")
    assert "--enable-metrics" in words(service(), scrapes=(page,))
    assert "sock_diag" in words(service(), counted=False)
    assert "--no-probe" in words(service(), probed=False)
    assert "KV transfer" in words(service(), service("prefill", role="prefill"))
    assert "partial" in words(service(), n_left_out=3)
    assert "short connections" in words(service(), lost=True)
    assert "another host" in words(service(client=True, remote=True))


def test_a_dead_service_is_not_taken_for_another_users():
    assert words(service(pids=()), saw_foreign=True) == ""


def test_reads_counters_often_in_a_long_window_and_never_the_pages_that_a_plain_proxy_passes_on():
    def made(name, role, engine):
        return Service(
            name=name, role=role, engine=engine, url="http://h:1", metrics="http://h:1/metrics", health="/health"
        )

    stack = Stack(
        name="s", entry="p", services={"p": made("p", "proxy", "generic"), "d": made("d", "decode", "sglang")}
    )
    plan = {(one.name, kind): times for one, kind, times in reading_plan(stack, 85)}
    assert ("p", "metrics") not in plan
    assert len(plan["d", "metrics"]) >= 85 // 5
    assert max(max(times) for times in plan.values()) < 85
    assert plan["d", "info"] == [0.0]


def test_keeps_only_log_lines_that_match_redacted_and_counted(tmp_path):
    log = tmp_path / "x.log"
    log.write_bytes(
        b"\xff\xfe noise\n"
        + b"all is well\n" * 9000
        + b"upstream timed out reading header, api_key=sk-secret12345\n" * 3
    )
    (line,) = read_log_tail("proxy", log)
    assert (line.service, line.pattern, line.n_seen) == ("proxy", "header_timeout", 3)
    assert "secret12345" not in line.text
    assert read_log_tail("proxy", tmp_path / "none.log") == ()
    assert read_log_tail("proxy", tmp_path) == ()
