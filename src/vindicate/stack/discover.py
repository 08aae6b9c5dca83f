"""A URL, or nothing → the Stack that the sockets of this host show: listeners, who calls whom, and what each answers."""

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import psutil

from vindicate.errors import MisuseError
from vindicate.record.observation import Address
from vindicate.stack.ask import ASK_S, BODY_LIMIT, Answers, ask
from vindicate.stack.http import OwnSockets, exchange
from vindicate.stack.model import Service, Stack
from vindicate.stack.process import is_local, process_tree
from vindicate.stack.sockets import EndedSockets, InodeOwners, RawSocket, dump_sockets, raw_sockets

__all__ = ["discover"]

_LOOKS_S = 1.0
_LOOK_STEP_S = 0.12
_CATCHES, _MAX_CAUGHT = 3, 4
_MAX_NODES, _MAX_CANDIDATES = 24, 64
_OUTGOING = ("ESTABLISHED", "SYN_SENT", "CLOSE_WAIT")
# Ports of things that a service talks to and that are no part of the chain: ssh, DNS, databases, queues, telemetry.
_NOT_HTTP = frozenset(
    {22, 25, 53, 111, 2049, 2379, 2380, 3306, 4222, 4317, 4318, 5432, 5672, 6379, 9092, 11211, 14268, 27017}
)
_URL = re.compile(r"https?://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+):(\d{1,5})")
_PROXIES = ("nginx", "haproxy", "litellm")
# Options that name what a service reports to or is registered at; where nothing listens there, no request is lost.
_NO_UPSTREAM = re.compile(
    r"trac|otel|otlp|telemetry|metric|prometheus|push|log|sentry|hook|callback|origin|redis|etcd|registr|discover|referer",
    re.IGNORECASE,
)


@dataclass(slots=True)
class _Node:
    url: str
    port: int
    pids: tuple[int, ...]
    remote: bool = False
    answers: Answers = field(default_factory=Answers)
    upstream: list[str] = field(default_factory=list)
    option: str = ""

    @property
    def name(self) -> str:
        """`pid:NAME:PORT`, or `HOST:PORT` on another host."""
        if self.remote:
            return f"{urlsplit(self.url).hostname}:{self.port}"
        word = _command(self.pids[0]) if self.pids else "unknown"
        return f"pid:{word}:{self.port}"


def discover(url: str | None) -> Stack:
    """Find the chain behind *url*, or with ``None`` the chain on this host that looks most like one.

    Services are named `pid:NAME:PORT`. Ports are asked with GET only, with short deadlines; given a URL, only those that it
    leads to are asked. A dead port gives a Stack of that one service.

    Raises:
        MisuseError: *url* is no http URL, or without one nothing on this host looks like a serving chain.
        CannotError: The sockets of this host cannot be read.

    Cost:
        About 1.5 s for each layer of the chain.
    """
    root = None if url is None else _checked(url)
    return asyncio.run(_Search().run(root))


def _checked(url: str) -> str:
    remedy = "try: vindicate diagnose http://127.0.0.1:4000"
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        named = "://" in url or parts.port is not None  # a bare word is more likely a slip than a host
        good = named and parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise MisuseError(f"{url!r} is no URL: {error}", remedy=remedy) from error
    if not good or any(sign.isspace() for sign in url):
        raise MisuseError(f"{url!r} is no URL of a service; expected http://HOST:PORT", remedy=remedy)
    if parts.password is not None:
        raise MisuseError("the URL holds a password", remedy="name its variable as api_key_env in a stack file instead")
    base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    return base.removesuffix("/chat/completions").removesuffix("/v1")


class _Search:
    """One discovery; nodes are kept by port (local) or host and port (remote)."""

    def __init__(self) -> None:
        self.owners = InodeOwners(full_every_s=0.3)
        self.nodes: dict[str, _Node] = {}
        self.sockets: list[RawSocket] = []
        self.listening: dict[int, tuple[str, tuple[int, ...]]] = {}
        self.calls: dict[int, set[Address]] = {}
        self.trees: dict[int, tuple[int, ...]] = {}
        self.caught: dict[int, set[Address]] = {}
        self.others: tuple[str, ...] = ()

    async def run(self, url: str | None) -> Stack:
        await asyncio.to_thread(self.look)
        if url is None:
            url = await self.find_entry()
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        if is_local(parts.hostname or ""):
            entry = self.local_node(port, url)
        else:
            entry = self.remote_node(Address(parts.hostname or "", port), url)
        todo = [entry]
        done: list[_Node] = []
        while todo and len(done) < _MAX_NODES:
            await self.ask_level(todo)
            done += todo
            todo = self.next_level(todo, done)
        return self.stack(entry, done)

    # ---- sockets -------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Note who listens and who calls whom right now."""
        self.sockets = dump_sockets()
        self.owners.resolve(one.inode for one in self.sockets if one.state == "LISTEN" or one.state in _OUTGOING)
        self.listening = {}
        for one in self.sockets:
            if one.state == "LISTEN":
                _, known = self.listening.get(one.local.port, ("", ()))
                self.listening[one.local.port] = (one.local.host, tuple(sorted({*known, *self.owners[one.inode]})))
        for one in self.sockets:
            if one.state in _OUTGOING and one.local.port not in self.listening:
                for pid in self.owners[one.inode]:
                    self.calls.setdefault(pid, set()).add(one.remote)

    async def keep_looking(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(_LOOK_STEP_S)
            await asyncio.to_thread(self.look)

    def local_node(self, port: int, url: str | None = None) -> _Node:
        host, pids = self.listening.get(port, ("127.0.0.1", ()))
        if url is None:
            here = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 compared, not bound
            url = f"http://[{here}]:{port}" if ":" in here else f"http://{here}:{port}"
        return self.nodes.setdefault(str(port), _Node(url, port, pids))

    def remote_node(self, address: Address, url: str | None = None) -> _Node:
        host = f"[{address.host}]" if ":" in address.host else address.host
        key = f"{address.host}:{address.port}"
        return self.nodes.setdefault(key, _Node(url or f"http://{key if host == address.host else f'{host}:{address.port}'}", address.port, (), remote=True))  # fmt: skip

    # ---- the chain, level by level -------------------------------------------------------------------------------

    async def ask_level(self, level: list[_Node]) -> None:
        """Ask every node what it is, and watch meanwhile whom it calls: a relay that is asked asks in its turn."""
        watching = asyncio.create_task(self.keep_looking(_LOOKS_S))
        answers = await asyncio.gather(*(ask(node.url, self.other_ports(node)) for node in level))
        await watching
        for node, answer in zip(level, answers, strict=True):
            node.answers = answer
        await self.catch_all(level)

    async def catch_all(self, nodes: Iterable[_Node]) -> None:
        """Follow those that answer and were not seen to call anybody, one after the other."""
        for node in nodes:
            if node.answers.spoke and node.pids and not any(self.calls.get(pid) for pid in self.tree(node)):
                called = await self.catch(node)
                # What was called further down in the same moment ended in the same moment; it is not called by this one.
                further = [await self.catch(self.local_node(one.port)) for one in called]
                self.calls.setdefault(node.pids[0], set()).update(called.difference(*further))

    async def catch(self, node: _Node) -> set[Address]:
        """Whom a relay calls that opens a connection for each request: too short to be looked at, but its end is told.

        Who held it is not told, so only a port that was called each time that *node* was asked is taken.
        """
        if node.port in self.caught:
            return self.caught[node.port]
        ended, own = EndedSockets(), OwnSockets()
        rounds: list[set[Address]] = []
        try:
            for _ in range(_CATCHES if ended.open else 0):
                ended.drain()
                await exchange(f"{node.url}/v1/models", deadline_s=ASK_S, limit_bytes=BODY_LIMIT, own=own)
                await asyncio.sleep(0.02)
                seen = [one for one in raw_sockets(ended.drain()) if (one.local, one.remote) not in own]
                rounds.append({one.remote for one in seen if one.remote.port in self.listening})
        finally:
            ended.close()
        each_time = {one for one in set.intersection(*rounds) if one.port != node.port} if rounds else set()
        self.caught[node.port] = each_time if len(each_time) <= _MAX_CAUGHT else set()
        return self.caught[node.port]

    def other_ports(self, node: _Node) -> list[int]:
        """Further ports that the same processes listen on: a router has its metrics there."""
        if node.remote or not node.pids:
            return []
        held = {port for port, (_, pids) in self.listening.items() if set(pids) & set(node.pids)}
        return sorted(held - {node.port} - _NOT_HTTP)[:4]

    def next_level(self, level: list[_Node], done: list[_Node]) -> list[_Node]:
        found: list[_Node] = []
        chain_pids = {pid for node in done for pid in self.tree(node)}
        for node in level:
            if node.remote:
                continue
            for below in self.called_by(node, chain_pids):
                key = str(below.port) if not below.remote else below.name
                if key != str(node.port) and key not in node.upstream:
                    node.upstream.append(key)
                if below not in done and below not in found:
                    found.append(below)
        return found[: _MAX_NODES - len(done)]

    def called_by(self, node: _Node, chain_pids: set[int]) -> list[_Node]:
        """The nodes that *node* calls: by its connections, by its command line; by its environment where these show none."""
        own = set(self.tree(node))
        addresses = {address for pid in own for address in self.calls.get(pid, ())}
        below = [
            one for address in sorted(addresses, key=_order) if (one := self.node_at(address, own, node)) is not None
        ]
        named = [one for pid in node.pids for one in self.named_nodes(_argv(pid), own)]
        if not below and not named:
            named = [one for pid in node.pids for one in self.named_nodes(_environ(pid), own)]
        dead = self.dead_nodes(node) if below or named or not node.answers.llm else []
        unique = {id(one): one for one in [*below, *named, *dead]}
        # What an engine calls inside the chain is its peer (a KV link), not its upstream; a loop is no upstream either.
        return [one for one in unique.values() if one.remote or not (set(one.pids) & chain_pids)]

    def tree(self, node: _Node) -> tuple[int, ...]:
        """The processes of *node* and their children, seen once."""
        if node.port not in self.trees:
            self.trees[node.port] = process_tree(node.pids) if not node.remote else ()
        return self.trees[node.port]

    def node_at(self, address: Address, own: set[int], caller: _Node) -> _Node | None:
        if address.port in _NOT_HTTP:
            return None
        if not is_local(address.host):
            # A remote peer is a border of this host; an engine's peers (transfer, telemetry) are not its upstream.
            return None if caller.answers.engine or caller.answers.mode else self.remote_node(address)
        if address.port not in self.listening or set(self.listening[address.port][1]) & own:
            return None
        return self.local_node(address.port)

    def named_nodes(self, texts: Iterable[str], own: set[int]) -> list[_Node]:
        found = []
        for host, port in (match.groups() for text in texts for match in _URL.finditer(text)):
            number = int(port)
            if is_local(host.strip("[]")) and number in self.listening and number not in _NOT_HTTP:
                holders = set(self.listening[number][1])
                if not holders & own and os.getpid() not in holders:
                    found.append(self.local_node(number))
        return found

    def dead_nodes(self, caller: _Node) -> list[_Node]:
        """Where the arguments of a relay send requests and nothing listens; what answers for itself calls nobody."""
        found = []
        for option, text in ((option, text) for pid in caller.pids for option, text in _options(_argv(pid))):
            for host, port in (match.groups() for match in _URL.finditer(text)):
                number = int(port)
                known = number in self.listening or number in _NOT_HTTP or not 0 < number < 65536
                if not known and is_local(host.strip("[]")) and not _NO_UPSTREAM.search(option):
                    node = self.local_node(number, f"http://{host}:{number}")
                    node.option = option
                    found.append(node)
        return found

    # ---- without a URL -------------------------------------------------------------------------------------------

    async def find_entry(self) -> str:
        """The listener that clients call first: one that answers like an LLM service, or is silent, and that no other candidate calls.

        Raises:
            MisuseError: There is none.
        """
        ports = [
            port
            for port, (_, pids) in self.listening.items()
            if pids and os.getpid() not in pids and port not in _NOT_HTTP
        ]
        candidates = {port: self.local_node(port) for port in ports[:_MAX_CANDIDATES]}
        watching = asyncio.create_task(self.keep_looking(_LOOKS_S))
        answers = await asyncio.gather(*(ask(node.url, []) for node in candidates.values()))
        await watching
        for node, answer in zip(candidates.values(), answers, strict=True):
            node.answers = answer
        clients = self.client_counts()
        likely = {
            port: node
            for port, node in candidates.items()
            if node.answers.llm or (node.answers.silent and clients[port])
        }
        await self.catch_all(likely.values())
        for node in likely.values():
            below = {one.port for one in self.called_by(node, set(self.tree(node)))}
            node.upstream = [str(port) for port in sorted(below) if port in likely]
        by_key = {str(port): node for port, node in likely.items()}
        called = {key for node in likely.values() if _relays(node, by_key) for key in node.upstream}
        roots = [node for key, node in by_key.items() if key not in called] or list(likely.values())
        self.nodes.clear()
        if not roots:
            raise MisuseError(
                f"nothing that listens on this host ({len(ports)} ports of processes that can be seen) answers like an LLM service",
                remedy="try: vindicate diagnose http://HOST:PORT, or --stack FILE",
            )
        best = max(
            roots, key=lambda one: (clients[one.port] > 0, len(_reached(str(one.port), by_key)), clients[one.port])
        )
        self.others = tuple(one.url for one in roots if one is not best)
        return best.url

    def client_counts(self) -> Counter[int]:
        """Established connections at each listening port, our own excepted."""
        ours = {one.local.port for one in self.sockets if os.getpid() in self.owners[one.inode]}
        return Counter(
            one.local.port
            for one in self.sockets
            if one.state in ("ESTABLISHED", "CLOSE_WAIT")
            and one.local.port in self.listening
            and one.remote.port not in ours
        )

    # ---- the result ----------------------------------------------------------------------------------------------

    def stack(self, entry: _Node, nodes: list[_Node]) -> Stack:
        by_key = {(node.name if node.remote else str(node.port)): node for node in nodes}
        for node in nodes:
            if not _relays(node, by_key):
                node.upstream = []
        reached = _reached(next(key for key, node in by_key.items() if node is entry), by_key)
        kept = {
            key: node for key, node in by_key.items() if key in reached and (node is entry or _belongs(node, by_key))
        }
        services: dict[str, Service] = {}
        roles: dict[str, str] = {}
        for key in [*kept]:
            _role(key, kept, roles)
        _name_dead_leg(kept, roles)
        for key, node in kept.items():
            services[node.name] = Service(
                name=node.name,
                role=roles[key],
                engine=_engine(node, roles[key]),
                url=node.url,
                metrics=(node.answers.metrics if roles[key] != "proxy" else None) or node.url + "/metrics",
                health="/health",
                upstream=tuple(kept[below].name for below in node.upstream if below in kept),
            )
        return Stack(name="discovered", entry=entry.name, services=services, others=self.others)


def _relays(node: _Node, nodes: dict[str, _Node]) -> bool:
    """Whether what *node* calls is its upstream. One that says what an engine says is a relay only if somebody below says the same.

    Otherwise it is that engine, and what it calls are its peers: a KV link, a bootstrap port, telemetry.
    """
    said = node.answers
    if said.mode is None and said.engine is None:
        return True
    below = [nodes[key].answers for key in node.upstream if key in nodes]
    return any(one.mode == said.mode and (said.engine is None or one.engine == said.engine) for one in below)


def _reached(key: str, nodes: dict[str, _Node]) -> set[str]:
    reached, todo = set[str](), [key]
    while todo:
        here = todo.pop()
        if here not in reached and here in nodes:
            reached.add(here)
            todo.extend(nodes[here].upstream)
    return reached


def _belongs(node: _Node, nodes: dict[str, _Node]) -> bool:
    """Whether *node* is a part of the chain: it calls one, answers like one, or is silent or dead where one is called."""
    if any(below in nodes for below in node.upstream):
        return True
    said = node.answers
    return said.llm or said.silent or said.refused or node.remote


def _role(key: str, nodes: dict[str, _Node], roles: dict[str, str]) -> str:
    if key in roles:
        return roles[key]
    roles[key] = "engine"  # ends a loop
    node = nodes[key]
    said = node.answers
    below = [_role(other, nodes, roles) for other in node.upstream if other in nodes]
    relays = any(
        nodes[other].answers.router for other in node.upstream if other in nodes
    )  # then its page is not its own
    split = [role for role in below if role in ("prefill", "decode")]
    if (said.router and not relays) or len(below) > 1 or split:
        role = "router"
    elif below:
        role = "proxy"
    elif said.mode in ("prefill", "decode"):
        role = said.mode
    else:
        role = {"kv_producer": "prefill", "kv_consumer": "decode"}.get(_kv_role(node), "engine")
    roles[key] = role
    return role


def _name_dead_leg(nodes: dict[str, _Node], roles: dict[str, str]) -> None:
    """A dead leaf beside one side of a split pair is the other side, unless the option that names it says which it is."""
    for node in nodes.values():
        sides = {roles[key] for key in node.upstream if key in nodes} & {"prefill", "decode"}
        for key in node.upstream:
            if key in nodes and nodes[key].answers.refused and roles[key] == "engine":
                said = [side for side in ("prefill", "decode") if side in nodes[key].option]
                other = {"prefill": "decode", "decode": "prefill"}.get(next(iter(sides), ""), "engine")
                roles[key] = said[0] if len(said) == 1 else other if len(sides) == 1 else roles[key]


def _engine(node: _Node, role: str) -> str:
    said = node.answers
    if role in ("proxy", "router", "gateway"):
        words = " ".join(_argv(node.pids[0])[:3]) if node.pids else ""
        found = next((name for name in _PROXIES if name in words), "generic")
        return said.router or found if role == "router" else found
    return said.engine or ("sglang" if said.mode else "generic")


def _kv_role(node: _Node) -> str:
    words = " ".join(word for pid in node.pids[:1] for word in _argv(pid))
    match = re.search(r"kv_producer|kv_consumer", words)
    return match[0] if match else ""


def _order(address: Address) -> tuple[int, str]:
    return (address.port, address.host)


def _command(pid: int) -> str:
    try:
        name = psutil.Process(pid).name()
    except psutil.Error:
        name = "gone"
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name) or "unknown"


def _argv(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def _options(argv: Iterable[str]) -> list[tuple[str, str]]:
    """Every word of a command line with the option that it belongs to: the last one before it, or its own part before ``=``."""
    found, option = [], ""
    for word in argv:
        name, equals, value = word.partition("=")
        if word.startswith("-"):
            option = name
        found.append((name, value) if equals and "://" not in name else (option, word))
    return found


def _environ(pid: int) -> list[str]:
    """Values of the environment that name a URL; read for their ports only, and never kept."""
    try:
        return [value for value in psutil.Process(pid).environ().values() if "://" in value]
    except psutil.Error:
        return []
