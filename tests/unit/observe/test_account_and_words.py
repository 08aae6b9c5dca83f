"""The parts of observing that need no host: which looks are kept, whose FIN it was, what is said to be unseen."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vindicate.observe.account import settle_fin
from vindicate.observe.blind import blind_spots
from vindicate.observe.history import History, Seen, thin
from vindicate.observe.logs import read_log_tail
from vindicate.observe.plan import reading_plan
from vindicate.record.observation import Address, Capture, Listener, Scrape, SeenService
from vindicate.stack.model import Service, Stack
from vindicate.wire.sockdiag import STATES

HERE, THERE = Address("127.0.0.1", 8000), Address("127.0.0.1", 40000)
NAMES = {name: number for number, name in enumerate(STATES)}


def seen(look, rx=0, tx=0, state="ESTABLISHED", unread=0):
    return Seen(look, NAMES[state], rx, tx, unread, 0, 0, 0, 1, 0, 0, 0, look / 4)


def test_a_connection_at_rest_keeps_its_first_and_last_look_only():
    assert [one.look for one in thin([seen(n) for n in range(1, 41)], 1)] == [1, 40]


def test_both_sides_of_each_move_are_kept():
    looks = [seen(1), seen(2), seen(3), seen(4, rx=9), seen(5, rx=9), seen(6, rx=9)]
    assert [one.look for one in thin(looks, 1)] == [1, 3, 4, 6]
    assert [one.look for one in kept(looks)] == [1, 3, 4, 6]


def test_with_many_connections_all_keep_the_same_looks_and_every_change_of_state():
    looks = [seen(n, rx=n, state="CLOSE_WAIT" if n > 6 else "ESTABLISHED") for n in range(1, 14)]
    assert [one.look for one in thin(looks, 4)] == [1, 4, 7, 8, 12, 13]


def kept(looks, others=0):
    """What a history keeps of one connection among *others* at rest."""
    history = History()
    for one in looks:
        numbers = np.arange(others + 1)
        rest = [seen(one.look)[:-1]] * others
        history.note(numbers, np.array([one[:-1], *rest], np.int64))
    return history.of_each(others + 1, [n / 4 for n in range(99)])[0]


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["ESTABLISHED", "CLOSE_WAIT"])), min_size=1, max_size=12))
@settings(deadline=None, max_examples=60)
def test_what_is_kept_is_what_would_be_kept_of_all_looks(moves):
    looks = [seen(n, rx=rx, state=state) for n, (rx, state) in enumerate(moves, 1)]
    assert thin(kept(looks), 1) == thin(looks, 1)


def test_the_memory_of_many_moving_connections_is_bounded_but_no_change_of_state_is_lost():
    looks = [seen(n, rx=n, state="CLOSE_WAIT" if n > 7 else "ESTABLISHED") for n in range(1, 41)]
    few = kept(looks, others=9000)
    assert len(few) <= 12
    assert [(one.look, one.state) for one in few if one.look in (7, 8)] == [(7, 1), (8, 8)]
    assert (few[0].look, few[-1].look) == (1, 40)


@pytest.mark.parametrize(
    ("peer_sent", "raw", "settled"),
    [(100, 101, 100), (100, 100, 100), (100, 40, 40)],
)
def test_the_other_end_decides_whether_a_fin_was_counted(peer_sent, raw, settled):
    one, other = [seen(3, rx=raw, state="CLOSE")], [seen(3, tx=peer_sent, state="CLOSE")]
    settle_fin(one, other)
    settle_fin(other, one)
    assert one[-1].rx == settled
    assert other[-1].rx == 0


def test_of_a_remote_peer_the_end_that_closed_second_has_counted_its_fin():
    second = [seen(1, rx=50), seen(3, rx=51, state="CLOSE")]
    first = [seen(3, rx=51, state="CLOSE"), seen(4, rx=51, state="TIME_WAIT")]
    settle_fin(second, None)
    settle_fin(first, None)
    assert (second[-1].rx, first[-1].rx) == (50, 51)


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
