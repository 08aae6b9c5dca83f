"""One small streaming request of ours → a ProbeResult: how far it came, when each byte arrived, and how its stream ended."""

import asyncio
import json
import secrets
import time
import zlib
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from vindicate.errors import EngineError
from vindicate.observe.scrape import auth_header
from vindicate.record.observation import ProbeResult
from vindicate.redact import redact_text
from vindicate.stack.http import Exchange, OwnSockets, exchange
from vindicate.stack.model import Service, Stack
from vindicate.stack.named import argv_of
from vindicate.stack.process import process_tree, service_pids
from vindicate.wire.openai import OpenAIStream

__all__ = ["PROBED_ROLES", "Pair", "Target", "answers_alone", "probe", "probe_pair", "targets_of"]

# Roles that can take a whole request; one leg of a split pair cannot.
PROBED_ROLES = ("proxy", "gateway", "router", "engine")
_MAX_PAIRS = 4
_BODY_LIMIT, _MAX_TIMES = 1_000_000, 256
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()
_REMOTE_PREFILL = {
    "do_remote_decode": True, "do_remote_prefill": False,
    "remote_engine_id": None, "remote_block_ids": None, "remote_host": None, "remote_port": None,
}  # fmt: skip
_WORKER_HEADERS = ("x-sgl-decode-url", "x-smg-worker", "x-worker-url", "x-worker-id", "x-worker", "x-upstream")


@dataclass(frozen=True, slots=True)
class Target:
    """A service to be sent a whole request, those below it that the request must pass, and those of which it passes some.

    *shape* ``leg``: one side of a split pair, asked without the other.
    """

    service: Service
    covers: tuple[str, ...]
    may_pass: tuple[str, ...] = ()
    shape: str = "chat"


@dataclass(frozen=True, slots=True)
class Pair:
    """A prefill and a decode service that must answer one request together, at once or one after the other."""

    prefill: Service
    decode: Service
    bootstrap_port: int | None

    @property
    def service(self) -> Service:
        """The one whose answer counts."""
        return self.decode

    @property
    def in_turn(self) -> bool:
        """Whether decode is asked with what prefill answered (vLLM), not both at once (SGLang)."""
        return self.prefill.engine == "vllm"


def targets_of(stack: Stack, bootstrap_ports: dict[str, int | None]) -> tuple[list[Target], list[Pair]]:
    """What to probe: the entry, each service on the way below it that takes a whole request, each pair of prefill and decode.

    Sides of a pair that compute a plain request by themselves (`answers_alone`) are asked for one, too. A pair that is asked at
    once needs a bootstrap port, and is left out where none is known.

    Args:
        bootstrap_ports: By prefill service; those of the stack file come first.
    """
    path = [stack.service(name) for name in stack.path_from(stack.entry)]
    whole = [
        Target(service, *_passed(stack, service.name))
        for service in path
        if service.role in PROBED_ROLES and not service.is_side
    ]
    prefills = [service for service in path if service.role == "prefill"]
    decodes = [service for service in path if service.role == "decode"]
    alone = [service.name for service in (*prefills, *decodes) if answers_alone(service)]
    pairs = [
        Pair(prefill, decode, prefill.bootstrap_port or bootstrap_ports.get(prefill.name))
        for prefill in prefills
        for decode in decodes
    ]
    pairs = [
        pair
        for pair in pairs
        if ({pair.prefill.name, pair.decode.name} <= {*alone} if pair.in_turn else pair.bootstrap_port is not None)
    ]
    whole += [Target(stack.service(name), (name,), shape="leg") for name in alone]
    return whole, pairs[:_MAX_PAIRS]


def answers_alone(service: Service) -> bool:
    """Whether one side of a split pair computes a plain request by itself, and takes no harm from it.

    A vLLM does with NIXL or with no connector at all; some other connectors end its engine at a request that no router has
    named for them. Its command line tells, so one that is not seen is left alone.
    """
    words = [word.lower() for pid in process_tree(service_pids(service)) for word in argv_of(pid)]
    plain = not any("kv-transfer" in word or word.split("=")[0] == "--config" for word in words)
    nixl = any("nixlconnector" in word for word in words) and not any("multiconnector" in word for word in words)
    return service.engine == "vllm" and bool(words) and (plain or nixl)


def _passed(stack: Stack, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a request to *name* must pass, and those of which it passes some: workers of one role that stand side by side."""
    must, some, todo = [name], [], [name]
    while todo:
        below = stack.service(todo.pop(0)).upstream
        roles = [stack.service(one).role for one in below]
        for one, role in zip(below, roles, strict=True):
            if roles.count(role) > 1:
                some += [under for under in stack.path_from(one) if under not in some]
            elif one not in must:
                must.append(one)
                todo.append(one)
    return tuple(must), tuple(one for one in some if one not in must)


def _body(model: str, max_tokens: int) -> dict[str, Any]:
    nonce = secrets.token_hex(6)
    return {
        "model": model,
        "messages": [{"role": "user", "content": f"[{nonce}] Say one word."}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _headers(service: Service) -> dict[str, str]:
    return {
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        "Accept-Encoding": "gzip",  # as the clients of these APIs do; what a relay makes of it is a part of what they see
        "X-Request-Id": f"vindicate-probe-{secrets.token_hex(8)}",
        **auth_header(service),
    }


@dataclass(slots=True)
class _Answer:
    """The body of an answer, read as an event stream while it comes; its first bytes are kept to say what came instead.

    *arrivals*: of a body that came compressed, when a part of it could be read.
    """

    stream: OpenAIStream = field(default_factory=OpenAIStream)
    seen: bytes = b""
    broken: bool = False
    n_replaced: int = 0
    token_times: list[float] = field(default_factory=list)
    zipped: Any = None
    n_unzipped: int = 0
    arrivals: list[float] = field(default_factory=list)

    def take(self, at: float, piece: bytes) -> bool:
        if self.zipped is None and not self.seen and piece[:1] == b"\x1f":  # no text begins so
            self.zipped = zlib.decompressobj(31)
        if self.zipped is not None:
            piece = self._unzipped(piece)
            if not piece or self.broken:
                return self.broken
            self.arrivals.append(at)
        self.n_replaced += piece.count(_REPLACEMENT)
        if len(self.seen) < 200:
            self.seen += piece[:200]
        try:
            if self.stream.feed(piece) and len(self.token_times) < _MAX_TIMES:
                self.token_times.append(round(at, 4))
        except EngineError:
            self.broken = True
        return self.broken

    def _unzipped(self, piece: bytes) -> bytes:
        try:
            text: bytes = self.zipped.decompress(piece, _BODY_LIMIT)
        except zlib.error:
            text, self.broken = b"", True
        self.n_unzipped += len(text)
        self.broken |= self.n_unzipped >= _BODY_LIMIT
        return text


async def _ask(service: Service, body: dict[str, Any], deadline_s: float, own: OwnSockets) -> tuple[Exchange, _Answer]:
    answer = _Answer()
    done = await exchange(
        service.url + "/v1/chat/completions",
        method="POST",
        deadline_s=deadline_s,
        headers=_headers(service),
        body=json.dumps(body).encode(),
        limit_bytes=_BODY_LIMIT,
        own=own,
        on_body=answer.take,
    )
    return done, answer


def _judge(done: Exchange, answer: _Answer) -> str | None:
    """Name what went wrong, in the words of `ProbeResult.error`."""
    stream = answer.stream
    if done.status is not None and not 200 <= done.status < 300:
        return f"http_{done.status}"  # whatever became of its body
    if answer.broken or done.error in ("too large", "garbage"):
        return "garbage"
    if done.error == "stalled":
        return "no_end" if stream.done or stream.finish_reason or stream.usage else "stalled"
    if done.error is not None:
        return done.error
    if stream.error:
        return "error_event"
    if stream.garbage:
        return "garbage"
    if stream.done:
        return None
    return "not_sse" if stream.n_events == 0 and answer.seen.strip() else "truncated"


def _result(
    service: Service,
    done: Exchange,
    answer: _Answer,
    *,
    covers: tuple[str, ...],
    shape: str,
    t_s: float,
    deadline_s: float,
) -> ProbeResult:
    error, stream = _judge(done, answer), answer.stream
    arrivals = done.arrivals if answer.zipped is None else answer.arrivals
    detail = stream.error or stream.garbage or done.problem
    if not detail and error is not None and stream.n_events == 0:
        detail = answer.seen.decode("utf-8", errors="replace")
    return ProbeResult(
        target=service.name,
        shape=shape,
        covers=covers,
        t_s=round(t_s, 4),
        connect_s=done.connect_s,
        first_byte_s=arrivals[0] if arrivals else None,
        total_s=done.total_s,
        deadline_s=deadline_s,
        status=done.status,
        n_events=stream.n_events,
        n_tokens=stream.n_tokens,
        finish_reason=stream.finish_reason and stream.finish_reason[:40],
        terminated=stream.done and done.complete,
        body_complete=done.complete,
        n_replaced=answer.n_replaced,
        gaps_s=tuple(round(after - before, 4) for before, after in pairwise(arrivals))[:_MAX_TIMES],
        token_times_s=tuple(answer.token_times),
        n_empty=max(0, stream.n_events - stream.n_token_chunks - stream.done),
        n_comments=stream.n_comments,
        error=error,
        request_bytes=done.sent_bytes,
        response_bytes=done.received_bytes,
        compressed=answer.zipped is not None,
        worker=next((redact_text(done.headers[name])[:120] for name in _WORKER_HEADERS if name in done.headers), None),
        detail=redact_text(detail)[:200],
    )


async def probe(
    target: Target, *, model: str, max_tokens: int, deadline_s: float, began: float, own: OwnSockets
) -> ProbeResult:
    """Send one whole request through *target*, on a fresh connection, with a prompt that no cache knows."""
    t_s = time.monotonic() - began
    answer, stream = await _ask(target.service, _body(model, max_tokens), deadline_s, own)
    made = _result(
        target.service, answer, stream, covers=target.covers, shape=target.shape, t_s=t_s, deadline_s=deadline_s
    )
    return replace(made, may_pass=target.may_pass)


async def probe_pair(
    pair: Pair, *, model: str, max_tokens: int, deadline_s: float, began: float, own: OwnSockets
) -> ProbeResult | None:
    """Send one request to both sides of *pair*, as a PD router does; the result is that of the decode leg.

    Both at once, `bootstrap_host`, `bootstrap_port` and a `bootstrap_room` of our own in both bodies (SGLang's protocol), or
    prefill first, for one token, and then decode with the `kv_transfer_params` that it answered (vLLM's): there the result is
    prefill's when prefill fails, and ``None`` when it gives no such parameters.

    Cost:
        Where decode fails in the order of vLLM, prefill keeps the KV of one small prompt until its own time-out frees it.
    """
    t_s = time.monotonic() - began
    covers = (pair.decode.name, pair.prefill.name)
    body = _body(model, max_tokens)
    if not pair.in_turn:
        body |= {
            "bootstrap_host": pair.prefill.host,
            "bootstrap_port": pair.bootstrap_port,
            "bootstrap_room": secrets.randbelow(2**63 - 1) + 1,
        }
        first, second = await asyncio.gather(
            _ask(pair.prefill, body, deadline_s, own), _ask(pair.decode, body, deadline_s, own)
        )
        made = _result(pair.decode, *second, covers=covers, shape="pd_pair", t_s=t_s, deadline_s=deadline_s)
        return replace(made, legs={pair.prefill.name: _judge(*first), pair.decode.name: made.error})
    done = await _asked_first(pair.prefill, body, deadline_s, own)
    error = f"http_{done.status}" if done.status is not None and not 200 <= done.status < 300 else done.error
    if error is not None:
        made = _result(
            pair.prefill,
            done,
            _Answer(seen=done.body[:200]),
            covers=covers[1:],
            shape="pd_pair",
            t_s=t_s,
            deadline_s=deadline_s,
        )
        return replace(made, error=error, legs={pair.prefill.name: error})
    given = _transfer_params(done.body)
    if given is None:
        return None
    t_s += done.total_s
    left_s = max(0.1, deadline_s - done.total_s)
    second = await _ask(pair.decode, body | {"kv_transfer_params": given}, left_s, own)
    made = _result(pair.decode, *second, covers=covers, shape="pd_pair", t_s=t_s, deadline_s=left_s)
    return replace(made, legs={pair.prefill.name: None, pair.decode.name: made.error})


async def _asked_first(prefill: Service, body: dict[str, Any], deadline_s: float, own: OwnSockets) -> Exchange:
    """The part of prefill in the order of vLLM: one token, not streamed, its KV kept for decode to fetch."""
    whole = {key: value for key, value in body.items() if key != "stream_options"}
    whole |= {"stream": False, "max_tokens": 1, "kv_transfer_params": _REMOTE_PREFILL}
    return await exchange(
        prefill.url + "/v1/chat/completions",
        method="POST",
        deadline_s=deadline_s,
        headers=_headers(prefill) | {"Accept": "application/json", "Accept-Encoding": "identity"},
        body=json.dumps(whole).encode(),
        limit_bytes=_BODY_LIMIT,
        own=own,
    )


def _transfer_params(body: bytes) -> dict[str, Any] | None:
    """What prefill gives on to decode; ``None`` when it is no such answer."""
    try:
        given = json.loads(body).get("kv_transfer_params")
    except (ValueError, AttributeError):
        return None
    return given if isinstance(given, dict) and given else None
