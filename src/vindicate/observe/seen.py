"""Services of a Stack and processes that call its entry → the nodes of a capture."""

from collections.abc import Collection, Mapping

from vindicate.record.observation import Address, Connection, SeenService
from vindicate.stack.model import Service, Stack
from vindicate.stack.process import is_local

__all__ = ["process_name", "seen_clients", "seen_service"]


def seen_service(
    stack: Stack,
    service: Service,
    address: Address | None,
    pids: tuple[int, ...],
    inside: tuple[Address, ...] = (),
) -> SeenService:
    """The node of *service*; *address* is what its host name was resolved to, *inside* where it listens in a namespace of its own."""
    knobs = [knob.name for knob in stack.knobs.values() if service.name in knob.services]
    return SeenService(
        name=service.name,
        role=service.role,
        engine=service.engine,
        url=service.url,
        address=address or Address(service.host, service.port),
        upstream=service.upstream,
        pids=pids,
        knobs={name: service.launcher.env.get(name) for name in knobs},
        remote=not is_local(service.host) and not pids,
        inside=inside,
        opaque=service.opaque,
    )


def seen_clients(
    entry: Service,
    clients: Mapping[str, tuple[int, ...]],
    connections: tuple[Connection, ...],
    hanging: Collection[str] = (),
) -> tuple[SeenService, ...]:
    """The nodes of *clients*, by name, and one for each other host that was connected to *entry*; *hanging*: those said to hang."""
    away = {
        one.remote.host
        for one in connections
        if one.local.port == entry.port and not one.ours and not is_local(one.remote.host)
    }
    here = [_client(name, entry, pids, None, said_to_hang=name in hanging) for name, pids in clients.items()]
    return (*here, *(_client(f"client:{host}", entry, (), Address(host, 0)) for host in sorted(away)))


def _client(
    name: str, entry: Service, pids: tuple[int, ...], address: Address | None, *, said_to_hang: bool = False
) -> SeenService:
    return SeenService(
        name=name,
        role="client",
        engine="generic",
        url=None,
        address=address,
        upstream=(entry.name,),
        pids=pids,
        client=True,
        remote=address is not None,
        said_to_hang=said_to_hang,
    )


def process_name(pid: int) -> str:
    """The command name of a process, `gone` when it has ended."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip() or "unknown"
    except OSError:
        return "gone"
