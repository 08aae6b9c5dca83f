"""A Stack and a window → which endpoint of which service is read when."""

from vindicate.stack.model import Service, Stack

__all__ = ["reading_plan"]

_WORKER_ROLES = ("prefill", "decode", "engine")
_INFO_ENGINES = ("sglang", "reference", "generic")
_LONG_WINDOW_S, _EVERY_S = 15.0, 5.0


def reading_plan(stack: Stack, window_s: float) -> list[tuple[Service, str, list[float]]]:
    """Service, kind of endpoint (see `vindicate.observe.scrape`) and the seconds of the window at which it is read.

    Counters are read four times, in a long window every 5 s besides; what does not change is read once.
    """
    last = max(0.0, window_s - 0.3)
    often = {0.0, window_s / 3, window_s * 2 / 3, last}
    if window_s > _LONG_WINDOW_S:
        often |= {_EVERY_S * n for n in range(1, int(last / _EVERY_S) + 1)}
    times = sorted(often)
    plan: list[tuple[Service, str, list[float]]] = []
    for service in stack.services.values():
        plan += [(service, "health", [0.0, window_s / 3]), (service, "models", [0.0])]
        if not _relays_metrics(service):
            plan.append((service, "metrics", times))
        if service.role in _WORKER_ROLES and service.engine in _INFO_ENGINES:
            plan += [(service, "loads", times), (service, "model_info", [0.0]), (service, "info", [0.0])]
            plan.append((service, "ready", [window_s / 3]))
        if service.engine in ("sglang-router", "smg"):
            plan.append((service, "workers", [0.0, last]))
    return plan


def _relays_metrics(service: Service) -> bool:
    """Whether what it answers at /metrics would be what stands behind it, and asking would only take one of its slots."""
    named = service.metrics != service.url + "/metrics" or service.engine != "generic"
    return service.role in ("proxy", "gateway") and not named
