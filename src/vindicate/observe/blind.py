"""A capture → in words, what could not be seen and what would make it visible."""

from vindicate.record.observation import Capture, SeenService

__all__ = ["blind_spots"]

_ENABLE = {
    "sglang": "start it with --enable-metrics",
    "sglang-router": "it serves them on its Prometheus port: set metrics in the stack file",
    "smg": "it serves them on its Prometheus port: set metrics in the stack file",
    "vllm-router": "it serves them on its Prometheus port: set metrics in the stack file",
    "llama.cpp": "start it with --metrics",
}


def blind_spots(
    capture: Capture, *, probed: bool, counted: bool, n_left_out: int, lost: bool, saw_foreign: bool
) -> tuple[str, ...]:
    """Name every gap of *capture*.

    Args:
        probed: Whether probes were allowed.
        counted: Whether the kernel gave byte counters.
        n_left_out: Looks at connections that were not kept because there were too many.
        lost: Whether some notices of ended connections did not fit the kernel's queue.
        saw_foreign: Whether there are processes that we may not look into.
    """
    spots: list[str] = []
    for service in capture.services:
        if not service.client:
            spots.extend(_of_service(capture, service))
        elif service.remote:
            spots.append(
                f"{service.name} is on another host, or in a container that is no service here: what it does with its answers is not seen from here"
            )
    if not counted:
        spots.append("no byte counters: the kernel does not answer sock_diag here, so only states and queues were seen")
    if n_left_out:
        spots.append("there were more connections than are kept; the socket account is partial")
    if lost:
        spots.append("connections ended faster than they could be counted; bytes of short connections are incomplete")
    if not probed:
        spots.append(
            "no probes were sent, so a fault that needs a fresh request to show may be missed; leave out --no-probe"
        )
    roles = {service.role for service in capture.services}
    if {"prefill", "decode"} <= roles:
        spots.append(
            "the KV transfer between prefill and decode may use RDMA, shared memory or message queues: "
            "it is seen through the engines' own queues and counters only"
        )
    if saw_foreign and any(_hidden(capture, service) for service in capture.services):
        spots.append("processes of other users cannot be looked into; run as root to see them")
    return tuple(dict.fromkeys(spots))


def _of_service(capture: Capture, service: SeenService) -> list[str]:
    spots = []
    if service.remote:
        spots.append(
            f"{service.name} is on another host: its sockets and processes were not seen; "
            "look from there too: --host user@NAME, or vindicate diagnose capture --out FILE there"
        )
    elif _hidden(capture, service):
        spots.append(
            f"the processes of {service.name} belong to another user: their other sockets, their state and knobs were not seen"
        )
    if service.url and service.url.startswith("https:"):
        spots.append(f"{service.name} speaks TLS: byte counts hold its framing, and are compared less sharply")
    pages = [seen for seen in capture.scrapes if seen.service == service.name and seen.kind == "metrics"]
    if pages and all(seen.error for seen in pages) and service.role != "proxy":
        advice = _ENABLE.get(service.engine)
        spots.append(f"no metrics from {service.name} ({pages[-1].error})" + (f": {advice}" if advice else ""))
    return spots


def _hidden(capture: Capture, service: SeenService) -> bool:
    """Something listens at the service's port, and we may not see who."""
    if service.pids or service.client or service.remote or service.address is None:
        return False
    return any(one.local.port == service.address.port and not one.pids for one in capture.listeners)
