"""argv and environment → the settings of one program of the reference stack."""

import argparse
import os
from dataclasses import dataclass
from typing import Any

from vindicate.errors import MisuseError
from vindicate.reference.fault import Fault, describe_faults, read_fault

__all__ = ["Settings", "read_settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one process runs; *role* is prefill, decode or router. What a role has no use for keeps its default."""

    role: str
    host: str
    port: int
    drain_s: float
    fault: Fault
    api_key: str | None = None
    model: str = "reference-copy"
    device: str = "simulated:rtx-pro-6000"
    bootstrap_port: int = 8998
    bootstrap_timeout_s: float = 300.0
    waiting_timeout_s: float = 300.0
    log_requests: bool = False
    max_total_tokens: int = 1_000_000
    max_running: int = 256
    prefills: tuple[tuple[str, int], ...] = ()
    decodes: tuple[str, ...] = ()
    health_interval_s: float = 5.0
    request_timeout_s: float = 1800.0


def read_settings(argv: list[str]) -> Settings:
    """Read the command line.

    Raises:
        MisuseError: A value cannot be.
        SystemExit: argparse's own complaint, or ``--help``.
    """
    given = _parser().parse_args(argv)
    common = {
        "role": given.role,
        "host": given.host,
        "port": given.port,
        "drain_s": given.drain_timeout,
        "fault": read_fault(given.fault, given.fault_after, given.role),
    }
    if given.role == "router":
        return Settings(
            **common,
            prefills=tuple((url.rstrip("/"), _port(port)) for url, port in given.prefill),
            decodes=tuple(url.rstrip("/") for url in given.decode),
            health_interval_s=given.health_check_interval_secs,
            request_timeout_s=given.request_timeout_secs,
        )
    return Settings(
        **common,
        api_key=given.api_key,
        model=given.served_model_name,
        device=given.device,
        bootstrap_port=getattr(given, "bootstrap_port", 8998),
        bootstrap_timeout_s=_seconds("SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT"),
        waiting_timeout_s=_seconds("SGLANG_DISAGGREGATION_WAITING_TIMEOUT"),
        log_requests=given.log_requests,
        max_total_tokens=given.max_total_tokens,
        max_running=given.max_running_requests,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m vindicate.reference",
        description="A small prefill-decode serving stack for learning, tests and rehearsals.",
    )
    roles = parser.add_subparsers(dest="role", required=True, metavar="prefill|decode|router")
    for role in ("prefill", "decode", "router"):
        sub = roles.add_parser(
            role,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog=f"faults, for tests and rehearsals:\n{describe_faults(role)}",
        )
        sub.add_argument("--host", default="127.0.0.1")
        sub.add_argument("--port", type=int, required=True)
        sub.add_argument(
            "--drain-timeout", type=float, default=3.0, help="seconds that live requests get after SIGTERM"
        )
        sub.add_argument("--fault", metavar="NAME[:ARG]", help="misbehave, see below")
        sub.add_argument("--fault-after", type=int, default=0, metavar="N", help="behave for the first N requests")
        (_add_router if role == "router" else _add_engine)(sub)
        if role == "prefill":
            sub.add_argument("--bootstrap-port", type=int, default=8998, help="where decode pulls the KV")
    return parser


def _add_engine(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--device",
        default="simulated:rtx-pro-6000",
        help="simulated:rtx-pro-6000, simulated:h200, …, or cpu, which computes the attention for real and needs numba",
    )
    sub.add_argument("--served-model-name", default="reference-copy")
    sub.add_argument("--api-key", help="asked for in Authorization: Bearer, /health and /metrics excepted")
    sub.add_argument("--max-total-tokens", type=int, default=1_000_000, help="tokens of KV that fit")
    sub.add_argument("--max-running-requests", type=int, default=256)
    sub.add_argument(
        "--log-requests", action="store_true", help="log each request's rid when it comes and when it ends, as JSON"
    )


def _add_router(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--prefill", nargs=2, action="append", required=True, metavar=("URL", "BOOTSTRAP_PORT"))
    sub.add_argument("--decode", action="append", required=True, metavar="URL")
    sub.add_argument("--health-check-interval-secs", type=float, default=5.0)
    sub.add_argument("--request-timeout-secs", type=float, default=1800.0)


def _port(text: Any) -> int:
    if not str(text).isdecimal() or not 0 < int(text) < 65536:
        raise MisuseError(
            f"--prefill has the bootstrap port {text!r}", remedy="try: --prefill http://127.0.0.1:30000 8998"
        )
    return int(text)


def _seconds(name: str) -> float:
    text = os.environ.get(name, "300")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise MisuseError(f"{name} is {text!r}, and should be a number of seconds above 0", remedy=f"unset {name}")
    return seconds
