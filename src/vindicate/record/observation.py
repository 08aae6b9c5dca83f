"""What was seen of a chain during one window, from every layer at once: the only input that a diagnosis has.

A capture is self-contained: written with `msgspec.json`, it is judged the same on another machine.
Times named `t_s` are seconds since the capture began, on the monotonic clock of the host that took it.
Anything that could not be seen is ``None`` or absent, never 0; `Capture.blind` says it in words.
"""

from dataclasses import dataclass, field

__all__ = [
    "ONLY_ITS_DATE",
    "Address",
    "Capture",
    "CardFacts",
    "CardSample",
    "Connection",
    "HostFacts",
    "Listener",
    "LogLine",
    "MetricValue",
    "ProbeResult",
    "ProcessFacts",
    "ProcessSample",
    "Scrape",
    "SeenService",
    "SocketSample",
    "StackLook",
    "ThreadStack",
]

ONLY_ITS_DATE = "; in all else it is trusted"  # of a certificate, after what is wrong with it


@dataclass(frozen=True, slots=True)
class Address:
    """One end of a TCP connection; *host* is the numeric address as text, IPv4-mapped IPv6 written as IPv4.

    A loopback address of another network namespace has that one's name after a percent sign.
    """

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketSample:
    """One look at one socket (`tcp_info`, Linux `include/uapi/linux/tcp.h`).

    Attributes:
        state: As the kernel names it: ``ESTABLISHED``, ``SYN_SENT``, ``SYN_RECV``, ``FIN_WAIT1``, ``FIN_WAIT2``, ``TIME_WAIT``,
            ``CLOSE``, ``CLOSE_WAIT``, ``LAST_ACK``, ``LISTEN``, ``CLOSING``.
        rx: Bytes received and acknowledged by us since the connection began (`tcpi_bytes_received`).
        tx: Bytes sent by us and acknowledged by the peer since it began (`tcpi_bytes_acked`, less the SYN).
        unread: Bytes in the receive queue that the process has not read (Recv-Q).
        unsent: Bytes in the send queue not yet acknowledged (Send-Q).
        last_rx_age_s, last_tx_age_s: Since data last came in, or went out; a connection that never carried any
            gives its age. Two of these a millisecond apart do not tell an order.
        retransmits: Segments sent again since the connection began.
        zero_window: Whether the peer's window is closed (probe timer running).
        counted: Whether *rx* and *tx* are known; false when the kernel gave no counters (then they are 0 and mean nothing).
            In TIME_WAIT they are those of the last look before.
        last_ack_age_s: Since the peer was last heard of, by any packet that acknowledges (`tcpi_last_ack_recv`); in CLOSE_WAIT that is
            as a rule its FIN.
    """

    t_s: float
    state: str
    rx: int
    tx: int
    unread: int
    unsent: int
    last_rx_age_s: float | None = None
    last_tx_age_s: float | None = None
    retransmits: int = 0
    zero_window: bool = False
    counted: bool = True
    last_ack_age_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """One TCP socket as its owner's host saw it. A loopback connection appears twice, once from each end.

    Attributes:
        id: Unique inside the capture.
        pids: Processes that hold the socket; empty when they could not be seen (another user's) or when the
            kernel alone holds it (TIME_WAIT, orphaned).
        samples: In time order; may be one. Looks between two equal ones are left out: the counters hold until the next sample.
        closed: It was seen to be gone before the window ended.
        fresh: It was first seen after the window began.
        ours: It belongs to one of our own probes or scrapes and counts for nobody.
    """

    id: str
    local: Address
    remote: Address
    pids: tuple[int, ...]
    samples: tuple[SocketSample, ...]
    closed: bool = False
    fresh: bool = False
    ours: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A listening socket: *waiting* connections in the accept queue, per sample, out of *backlog*."""

    local: Address
    pids: tuple[int, ...]
    backlog: int
    waiting: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricValue:
    """One sample of a Prometheus page; *name* as exposed (`sglang:num_running_reqs`), labels sorted by name."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """One read of one endpoint of a service.

    Attributes:
        kind: ``metrics``, ``health``, ``loads`` (SGLang `/v1/loads`), ``models``, ``info`` …
        status: HTTP status; ``None`` when no answer came.
        error: Why nothing usable came, in a few words: ``refused``, ``timeout``, ``too large``, ``not text`` …
        values: Only names that the service's dialect knows or that look like engine metrics; bounded.
        facts: Named facts read from a JSON endpoint, redacted, numbers and short texts only.
    """

    service: str
    kind: str
    url: str
    t_s: float
    took_s: float
    status: int | None = None
    error: str | None = None
    values: tuple[MetricValue, ...] = ()
    facts: dict[str, str | float | bool | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """A small streaming request of ours on a fresh connection.

    Attributes:
        target: Service whose URL was called.
        shape: ``chat``, ``completion``, ``pd_pair`` (both legs, as a router sends them), ``leg`` (one side of a pair alone), ``health`` …
        covers: Services that the request has to pass through for a good answer, *target* first.
        may_pass: Services of which it passes some: of several workers of one role it takes one.
        terminated: The stream ended as its protocol demands: `[DONE]` seen and the body complete.
        gaps_s: Time between arrivals of body chunks; shows buffering.
        error: ``refused``, ``connect_timeout``, ``tls``, ``tls_timeout``, ``no_headers`` (deadline before a status), ``no_first_byte``,
            ``stalled`` (bytes came, then none until the deadline), ``no_end`` (finish_reason or the last usage seen, end never),
            ``reset``, ``truncated``, ``http_500`` …, ``not_sse``, ``garbage``; ``None`` when all was well.
        request_bytes, response_bytes: Size on the wire of head and body, for subtraction from counters.
        worker: Value of a response header that names the worker, where the router sends one.
        body_complete: The body ended as HTTP demands, whatever it held.
        n_replaced: Replacement characters (U+FFFD) in the body: somebody decoded a character in two halves.
        legs: Of a ``pd_pair``: how each leg ended, by service; ``None`` is well.
        token_times_s: When chunks that carried text came, since the request was sent; ``None`` where that was not noted.
        n_empty: Events with data but without text, the end apart: a role, a heartbeat with an empty delta, usage.
        n_comments: Comment lines: heartbeats, which are no progress.
        compressed: The body came compressed: *response_bytes* are fewer than those of the same answer elsewhere.
    """

    target: str
    shape: str
    covers: tuple[str, ...]
    t_s: float
    connect_s: float | None = None
    first_byte_s: float | None = None
    total_s: float = 0.0
    deadline_s: float = 0.0
    status: int | None = None
    n_events: int = 0
    n_tokens: int = 0
    finish_reason: str | None = None
    terminated: bool = False
    gaps_s: tuple[float, ...] = ()
    error: str | None = None
    request_bytes: int = 0
    response_bytes: int = 0
    worker: str | None = None
    detail: str = ""
    legs: dict[str, str | None] = field(default_factory=dict)
    may_pass: tuple[str, ...] = ()
    body_complete: bool = False
    n_replaced: int = 0
    token_times_s: tuple[float, ...] | None = None
    n_empty: int = 0
    n_comments: int = 0
    compressed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSample:
    """One look at a process: CPU seconds used so far, threads, open files, scheduler wait, state letter of `/proc/PID/stat`.

    *frozen*: its control group runs nothing until it is thawed.
    """

    t_s: float
    state: str
    cpu_s: float
    n_threads: int
    n_fds: int | None = None
    rss_bytes: int | None = None
    run_delay_s: float | None = None
    frozen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """A process of the chain. *argv* is redacted; *knobs* holds only names the stack file declares; ``None`` = unset there.

    Attributes:
        throttled_pct: Share of the CPU periods in the window in which its control group's quota held it back.
        full_disk: A folder in which it works or writes, on a disk without room.
    """

    pid: int
    ppid: int
    name: str
    argv: tuple[str, ...]
    started_at: str
    fd_limit: int | None = None
    readable: bool = True
    knobs: dict[str, str | None] = field(default_factory=dict)
    samples: tuple[ProcessSample, ...] = ()
    ended: bool = False
    throttled_pct: float | None = None
    full_disk: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadStack:
    """One thread of a Python process; *frames* innermost first, as ``function (file:line)``."""

    name: str
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackLook:
    """What the threads of one process were doing at one moment."""

    pid: int
    t_s: float
    threads: tuple[ThreadStack, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSample:
    """One look at a GPU; ``None`` where the driver does not say.

    Attributes:
        busy_pct: Share of the last moments in which any kernel ran (NVML's `utilization.gpu`), however little it did.
        memory_traffic_pct: Share in which device memory was read or written (`utilization.memory`).
    """

    t_s: float
    busy_pct: float | None = None
    memory_traffic_pct: float | None = None
    power_w: float | None = None
    sm_mhz: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """A GPU of the host, and the processes that compute on it."""

    index: int
    name: str
    pids: tuple[int, ...] = ()
    power_limit_w: float | None = None
    max_sm_mhz: float | None = None
    samples: tuple[CardSample, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Pressure on the host over the window: PSI shares (0 to 100), memory, ports; ``None`` where the kernel does not say.

    Attributes:
        time_wait_to: Sockets in TIME_WAIT at the end of the window by service port of the chain, ``HOST:PORT``.
        oom_kills: Within the window.
    """

    cpu_pressure_pct: float | None = None
    memory_pressure_pct: float | None = None
    io_pressure_pct: float | None = None
    load_1m: float | None = None
    n_cpus: int | None = None
    memory_available_bytes: int | None = None
    disk_free_bytes: int | None = None
    ephemeral_ports: int | None = None
    n_time_wait: int | None = None
    time_wait_to: dict[str, int] = field(default_factory=dict)
    oom_kills: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """A line of a service's own log that matched a known pattern, redacted; confirms, never convicts alone."""

    service: str
    pattern: str
    text: str
    n_seen: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenService:
    """A node of the chain as the stack file, or discovery, gives it.

    Attributes:
        address: Where it listens; ``None`` for a node without a port.
        pids: Its processes, found from the port; empty when they cannot be seen or it is dead.
        knobs: Declared knob names that it must hold, with the declared value, or ``None``.
        client: It is a client of the entry, not a service.
        said_to_hang: A user named this client as one that hangs.
        opaque: It was discovered, and may call services that were not.
        inside: Where it listens in a network namespace of its own, as in a container; *address* is then where others find it.
    """

    name: str
    role: str
    engine: str
    url: str | None
    address: Address | None
    upstream: tuple[str, ...]
    pids: tuple[int, ...]
    knobs: dict[str, str | None] = field(default_factory=dict)
    client: bool = False
    remote: bool = False
    said_to_hang: bool = False
    opaque: bool = False
    inside: tuple[Address, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """Everything recorded in one window on one host; *n_looks* is how often the sockets were looked at, at a cost of *looks_cpu_s*."""

    schema: str
    host: str
    started_at: str
    window_s: float
    entry: str | None
    services: tuple[SeenService, ...]
    connections: tuple[Connection, ...] = ()
    listeners: tuple[Listener, ...] = ()
    scrapes: tuple[Scrape, ...] = ()
    probes: tuple[ProbeResult, ...] = ()
    processes: tuple[ProcessFacts, ...] = ()
    host_facts: HostFacts = HostFacts()
    log_lines: tuple[LogLine, ...] = ()
    blind: tuple[str, ...] = ()
    n_looks: int | None = None
    looks_cpu_s: float | None = None
    stacks: tuple[StackLook, ...] = ()
    cards: tuple[CardFacts, ...] = ()
