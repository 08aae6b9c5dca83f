"""Captures of two hosts become one; what cannot be joined is refused in words."""

from dataclasses import replace

import pytest

from fakes.captures import Scenery
from vindicate.diagnose.join import join_captures
from vindicate.diagnose.judge import judge
from vindicate.errors import MisuseError


def halves():
    """One starved chain, as two hosts saw it: proxy on the first, the rest on the second."""
    whole = (
        Scenery()
        .idle_engines()
        .waiting(8, "client", "proxy")
        .probe("proxy", "no_headers")
        .probe("router")
        .probe("decode")
        .capture()
    )
    first = replace(
        whole,
        host="a",
        services=tuple(
            s if s.name == "proxy" or s.client else replace(s, pids=(), remote=True) for s in whole.services
        ),
        connections=tuple(c for c in whole.connections if 4000 in (c.local.port, c.remote.port)),
        listeners=whole.listeners[:1],
        scrapes=(),
    )
    second = replace(
        whole,
        host="b",
        services=tuple(
            replace(s, pids=(), remote=True) if s.name == "proxy" else s for s in whole.services if not s.client
        ),
        connections=tuple(c for c in whole.connections if 4000 not in (c.local.port, c.remote.port)),
        listeners=whole.listeners[1:],
        probes=(),
    )
    return first, second


def test_finds_the_starved_proxy_in_the_captures_of_two_hosts():
    joined = join_captures(halves())
    diagnosis = judge(joined)
    assert (diagnosis.service, diagnosis.mechanism) == ("proxy", "proxy.connector_starvation")
    assert joined.host == "a + b"


def test_leaves_one_capture_as_it_is():
    capture = Scenery().capture()
    assert join_captures([capture]) is capture


def test_refuses_two_captures_of_one_host_and_captures_without_a_service_in_common():
    capture = Scenery().capture()
    with pytest.raises(MisuseError, match="one host"):
        join_captures([capture, capture])
    other = Scenery({"engine": ()}).capture()
    with pytest.raises(MisuseError, match="share no service"):
        join_captures([capture, replace(other, host="b", services=other.services[:1])])
    with pytest.raises(MisuseError, match="no capture"):
        join_captures([])
