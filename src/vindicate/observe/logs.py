"""The tail of a service's own log → the lines that match a known pattern, redacted; they confirm, and never convict alone."""

import os
import re
from pathlib import Path

from vindicate.record.observation import LogLine
from vindicate.redact import redact_text

__all__ = ["PATTERNS", "read_log_tail"]

# Name → what such a line looks like. A victim often writes it, not the culprit: the name says what was met, not who did it.
PATTERNS: dict[str, re.Pattern[str]] = {
    name: re.compile(pattern, re.IGNORECASE)
    for name, pattern in {
        "pool_timeout": r"pool ?timeout|timeout.{0,40}acquir\w+ .{0,20}connection|connection pool is full|queuepool limit",
        "header_timeout": r"upstream timed out|timed? ?out.{0,40}(?:reading|waiting for).{0,30}headers?",
        "reset": r"connection reset by peer|connection reset|ECONNRESET|prematurely closed connection",
        "chunk_cut": r"incomplete chunked read|incompleteread|transfer ?encodingerror|payload is not completed",
        "no_ports": r"cannot assign requested address|EADDRNOTAVAIL",
        "no_descriptors": r"too many open files|EMFILE",
        "port_in_use": r"address already in use|EADDRINUSE",
        "disk_full": r"no space left on device|ENOSPC",
        "out_of_memory": r"out of memory|cannot allocate memory|\bMemoryError\b|oom-?kill",
        "bootstrap_failed": r"bootstrap failed|timed out in bootstrapping|bootstrap(?:ping)? (?:timeout|timed out)",
        "peer_suspected": r"(?:decode|prefill) (?:instance )?could be dead",
        "transfer_failed": r"(?:prefill|decode) transfer failed|kv transfer (?:failed|error)|handshake failed",
        "state_deleted": r"state was deleted in the tokenizer|state deleted",
        "rank_wait": r"no available shared[- ]memory broadcast block",
        "health_no_answer": r"health check failed|no response from detokenizer",
        "watchdog": r"watchdog timeout|watchdog.{0,30}(?:fired|expired)",
        "retracted": r"retract(?:ed|ing)? .{0,40}requests?|kv cache pool is full",
        "duplicate_id": r"duplicate request id",
        "no_workers": r"no available (?:prefill|decode )?workers|server_selection_failed|no healthy (?:upstream|worker)",
        "breaker_open": r"circuit ?breaker.{0,40}open",
        "unauthorized": r"\b401\b.{0,40}unauthorized|invalid api key|incorrect api key",
        "certificate": r"certificate (?:has expired|verify failed)|CERTIFICATE_VERIFY_FAILED",
    }.items()
}
_TAIL = 64_000
_LINE = 300
_LIMIT = 40


def read_log_tail(service: str, path: Path) -> tuple[LogLine, ...]:
    """Look through the last 64 kB of the log at *path*; of each pattern the last line is kept, with how often it came.

    A log that cannot be read, or is no regular file, gives nothing.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ()
    try:
        size = os.fstat(descriptor).st_size  # 0 for a pipe or device, which is then read as empty
        raw = os.pread(descriptor, _TAIL, max(0, size - _TAIL)) if size else b""
    except OSError:
        return ()
    finally:
        os.close(descriptor)
    found: dict[str, LogLine] = {}
    for line in raw.decode("utf-8", errors="replace").splitlines():
        text = line[:2000]
        for name, pattern in PATTERNS.items():
            if pattern.search(text):
                seen = found[name].n_seen if name in found else 0
                found[name] = LogLine(
                    service=service, pattern=name, text=redact_text(text.strip())[:_LINE], n_seen=seen + 1
                )
    return tuple(found.values())[:_LIMIT]
