"""A URL, or nothing → the Stack that this host shows: followed from the entry by what each service is known to hand requests to.

A service calls more than its upstream: databases, collectors, other services' ports. So a called port is a part of the chain
only when it is named as an upstream, when a request of ours was seen to be passed on to it (`passed_on`), when what its callers
get is what comes from there (`flowing`), or when the program behind it is one that serves models or leads to one. To anything
else nothing is sent, and nothing is said against it.
"""

import asyncio
import os
import pwd
from dataclasses import dataclass
from urllib.parse import urlsplit

from vindicate.errors import MisuseError
from vindicate.record.observation import Address
from vindicate.stack.ask import ask
from vindicate.stack.calls import NOT_HTTP, HostCalls
from vindicate.stack.entry import checked_url, refuse_plain
from vindicate.stack.flowing import flowing_from
from vindicate.stack.model import Service, Stack
from vindicate.stack.named import (
    Named,
    command_of,
    is_no_server,
    named_by,
    named_in,
    named_in_environment,
)
from vindicate.stack.namespaces import container_name
from vindicate.stack.passed_on import handed_on, passed_on
from vindicate.stack.process import is_local, process_tree
from vindicate.stack.roles import HANDED_ON, Node, Part, belongs, parts_of, reached, relays

__all__ = ["Found", "discover", "search"]

_LOOK_STEP_S = 0.12
_MAX_NODES, _MAX_CANDIDATES = 24, 64


@dataclass(frozen=True, slots=True)
class Found:
    """A discovered stack, what each service was taken for, and its node, by its name there."""

    stack: Stack
    parts: dict[str, Part]
    nodes: dict[str, Node]


def discover(url: str | None, tokens: int = 0) -> Stack:
    """Find the chain behind *url*, or with ``None`` the chain on this host that looks most like one.

    Services are named `pid:NAME:PORT`. Ports are asked with GET, with short deadlines, and only those of the chain.
    A dead port gives a Stack of that one service.

    Args:
        tokens: So many small chats, of one token each, may be sent to relays of which nothing else says whom they call.

    Raises:
        MisuseError: *url* is no http URL, or says https where plain HTTP is spoken; or without one nothing on this host looks
            like a serving chain.
        CannotError: The sockets of this host cannot be read.

    Cost:
        About 0.3 s for each service of the chain; 1.5 s more for each layer that does not answer, 2.4 s for one with a relay
        that answers us by itself and says nowhere whom it calls.
    """
    return search(url, tokens).stack


def search(url: str | None, tokens: int = 0) -> Found:
    """As `discover`, with the reasons."""
    root = None if url is None else checked_url(url)
    return asyncio.run(_Search(tokens).run(root))


class _Search:
    """One discovery; nodes are kept by port (local) or host and port (remote)."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.calls = HostCalls()
        self.nodes: dict[str, Node] = {}
        self.trees: dict[str, tuple[int, ...]] = {}
        self.passed: dict[str, set[Address]] = {}
        self.handed: dict[str, set[Address]] = {}
        self.flowing: dict[str, set[Address]] = {}
        self.others: list[Node] = []
        self.notes: list[str] = []

    async def run(self, url: str | None) -> Found:
        await asyncio.to_thread(self.calls.look)
        if url is None:
            url = await self.find_entry()
        try:
            return await self.follow(url)
        finally:
            self.calls.close()

    async def follow(self, url: str) -> Found:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        entry = self.local_node(port, url) if is_local(host) else self.remote_node(Address(host, port), url)
        if parts.scheme == "https":
            await refuse_plain(url)
        todo, done = [entry], list[Node]()
        while todo and len(done) < _MAX_NODES:
            await self.ask_level(todo)
            done += todo
            todo = self.next_level(todo, done)
        return self.found(entry, done)

    # ---- nodes ---------------------------------------------------------------------------------------------------

    def local_node(self, port: int, url: str | None = None) -> Node:
        heard = self.calls.listening.get(port)
        if url is None:
            host = heard.hosts[0] if heard is not None else "127.0.0.1"
            here = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 compared, not bound
            url = f"http://[{here}]:{port}" if ":" in here else f"http://{here}:{port}"
        if str(port) in self.nodes:
            return self.nodes[str(port)]
        asked = urlsplit(url).hostname or ""
        if heard is not None and not heard.takes(asked):
            self.notes.append(
                f"nothing listens on {asked}:{port}; {command_of(heard.pids)} listens on port {port} of "
                f"{', '.join(heard.hosts)} only: call it there, or let it listen on {asked} too"
            )
            heard = None
        node = Node(url, port, heard.pids if heard else (), hidden=heard is not None and not heard.pids)
        if heard is not None and node.hidden:
            self.notes.append(
                f"port {port} is held by a process of {_user(heard.hidden)}, which cannot be looked into: "
                "whom it calls, its arguments and its knobs are seen as root only"
            )
        return self.nodes.setdefault(str(port), node)

    def remote_node(self, address: Address, url: str | None = None) -> Node:
        host = f"[{address.host}]" if ":" in address.host else address.host
        key = f"{address.host}:{address.port}"
        if key not in self.nodes:
            self.calls.follow(address.host)  # it may be in a container of this host
            pids = self.calls.holders_at(address)
            self.nodes[key] = Node(url or f"http://{host}:{address.port}", address.port, pids, remote=True)
            if pids and (name := container_name(pids[0])):
                self.notes.append(f"{key} is in the container {name}")
        return self.nodes[key]

    def tree(self, node: Node) -> tuple[int, ...]:
        """The processes of *node* and their children, seen once."""
        if node.key not in self.trees:
            self.trees[node.key] = process_tree(node.pids)
        return self.trees[node.key]

    # ---- the chain, level by level -------------------------------------------------------------------------------

    async def ask_level(self, level: list[Node], *, chats: bool = True) -> None:
        """Ask every node what it is, and look meanwhile whom it calls; then see to whom it passes a request on, with *chats* a chat too."""
        answered = asyncio.Event()
        looking = asyncio.create_task(self.look_until(answered))
        answers = await asyncio.gather(*(ask(node.url, self.other_ports(node)) for node in level))
        answered.set()
        await looking
        for node, answer in zip(level, answers, strict=True):
            node.answers = answer
        for node in level:
            if node.answers.spoke and node.pids:
                passed = await self.passed_by(node)
                # What a relay further down called in the same moment is called by that one.
                further = [await self.passed_by(self.local_node(one.port)) for one in self.listeners(passed)]
                self.passed[node.key] = passed.difference(*further)
        for node in level:
            if chats and self.tokens > 0 and node.key not in self.handed and self.is_riddle(node, engines=True):
                self.tokens -= 1
                self.handed[node.key] = await handed_on(node.url, self.calls, set(self.tree(node)))
        riddles = [one for one in level if one.key not in self.flowing | self.handed and self.is_riddle(one)]
        come = await asyncio.gather(*(flowing_from(self.calls, one.port, set(self.tree(one))) for one in riddles))
        self.flowing |= {node.key: found for node, found in zip(riddles, come, strict=True)}

    def is_riddle(self, node: Node, *, engines: bool = False) -> bool:
        """Whether it calls somebody, and nothing so far says which of them are its upstreams; *engines*: also of what answers like one."""
        if not node.pids or node.is_engine or (not engines and (node.answers.engine or node.answers.mode)):
            return False
        return not self.weigh(node, [one for pid in node.pids for one in named_by(pid)]) and bool(node.unknown)

    async def look_until(self, done: asyncio.Event) -> None:
        while not done.is_set():
            await asyncio.to_thread(self.calls.look)
            await asyncio.sleep(_LOOK_STEP_S)
        await asyncio.to_thread(self.calls.look)

    async def passed_by(self, node: Node) -> set[Address]:
        if node.key not in self.passed:
            self.passed[node.key] = set()
            self.passed[node.key] = await passed_on(node.url, self.calls, set(self.tree(node)))
        return self.passed[node.key] - {one for one in self.passed[node.key] if one.port == node.port}

    def listeners(self, addresses: set[Address]) -> list[Address]:
        return [one for one in addresses if is_local(one.host) and one.port in self.calls.listening]

    def other_ports(self, node: Node) -> list[int]:
        """Further ports that the same processes listen on: a router has its metrics there."""
        if node.remote or not node.pids:
            return []
        held = {port for port, heard in self.calls.listening.items() if set(heard.pids) & set(node.pids)}
        return sorted(held - {node.port} - NOT_HTTP)[:4]

    def next_level(self, level: list[Node], done: list[Node]) -> list[Node]:
        found: list[Node] = []
        chain_pids = {pid for node in done for pid in self.tree(node)}
        for node in level:
            if node.remote and not node.pids:
                continue
            for below, why in self.called_by(node, chain_pids):
                if below is not node:
                    node.upstream.setdefault(below.key, why)
                if below not in done and below not in found:
                    found.append(below)
        return found[: _MAX_NODES - len(done)]

    def called_by(self, node: Node, chain_pids: set[int]) -> list[tuple[Node, str]]:
        """The nodes to which *node* hands requests, and how that is known; what else it calls is noted as unknown."""
        named = [one for pid in node.pids for one in named_by(pid)]
        found = self.weigh(node, named)
        workers = [
            one
            for url, side in node.answers.workers.items()
            for one in named_in([url], f"its own metrics{f' ({side})' if side else ''}")
        ]
        if workers and {below.key for below, _ in found} <= {_key(one.host, one.port) for one in workers}:
            named += workers  # else it passes on the page of the router that it calls
            found = self.weigh(node, named)
        if not found:
            found = self.weigh(node, [one for pid in node.pids for one in named_in_environment(pid)])
        if not found and not node.is_engine:
            self.note_unix_calls(node)
        if found or not node.answers.llm:
            found += self.dead(named)
        # What an engine calls inside the chain is its peer (a KV link), not its upstream; a loop is no upstream either.
        return [(one, why) for one, why in found if not (set(one.pids) & chain_pids)]

    def note_unix_calls(self, node: Node) -> None:
        """What it calls over Unix sockets, whose bytes the kernel does not count: it may hand its requests on there."""
        calls = self.calls.unix_calls(set(self.tree(node))).items()
        told = {
            path: f"the Unix socket {path} of {command_of(held)}"
            for path, held in calls
            if not any(map(is_no_server, held))
        }
        node.unknown |= told

    def weigh(self, node: Node, named: list[Named]) -> list[tuple[Node, str]]:
        """Of all that *node* names or calls, the upstreams."""
        own = set(self.tree(node)) | {os.getpid()}
        found: dict[str, tuple[Node, str]] = {}
        names = {_key(one.host, one.port): one for one in reversed(named) if one.upstream is not None}
        passed = {_key(one.host, one.port) for one in self.passed.get(node.key, ())}
        flowing = {_key(one.host, one.port) for one in self.flowing.get(node.key, ())}
        handed = {_key(one.host, one.port) for one in self.handed.get(node.key, ())}
        called = {address for pid in own - {os.getpid()} for address in self.calls.by_pid.get(pid, ())}
        addresses = {_key(one.host, one.port): Address(one.host.strip("[]"), one.port) for one in named}
        shown = (*called, *self.passed.get(node.key, ()), *self.handed.get(node.key, ()))
        addresses |= {_key(one.host, one.port): one for one in shown}
        for key, address in sorted(addresses.items()):
            local = is_local(address.host)
            if not local:
                self.calls.follow(address.host)
            holders = set(self.calls.holders_at(address))
            if address.port in NOT_HTTP or holders & own or (local and address.port not in self.calls.listening):
                continue
            said = names.get(key)
            if said is not None and said.upstream:
                why = f"named by {said.by or 'its arguments'}"
            elif key in passed:
                why = "a request of ours was passed on to it"
            elif said is not None or any(is_no_server(pid) for pid in holders):
                continue
            elif key in handed:
                why = HANDED_ON
            elif key in flowing:
                why = "what comes from there goes on to its callers"
            elif holders and self.calls.leads_to_a_model(holders, own):
                why = f"connected, and {command_of(holders)} serves models or leads to one that does"
            else:
                who = f", held by {command_of(holders)}" if holders else ""
                node.unknown[key] = f"{address.host}:{address.port}{who}"
                continue
            node.unknown.pop(key, None)
            if local:
                found[key] = (self.local_node(address.port), why)
                found[key][0].option = said.by if said is not None and said.upstream else ""
            elif not (node.answers.engine or node.answers.mode):
                # A remote peer is a border of this host; an engine's peers (transfer, telemetry) are not its upstream.
                found[key] = (self.remote_node(address, _url(said)), why)
        return list(found.values())

    def dead(self, named: list[Named]) -> list[tuple[Node, str]]:
        """Where the arguments of a relay send requests and nothing listens; what answers for itself calls nobody."""
        found = []
        for one in named:
            known = one.port in self.calls.listening or one.port in NOT_HTTP
            if one.upstream and not known and is_local(one.host.strip("[]")):
                node = self.local_node(one.port, f"http://{one.host}:{one.port}")
                node.option = one.by
                found.append((node, f"named by {one.by or 'its arguments'}"))
        return found

    # ---- without a URL -------------------------------------------------------------------------------------------

    async def find_entry(self) -> str:
        """The listener that clients call first, of those whose programs serve models or lead to one that does.

        Raises:
            MisuseError: There is none.
        """
        ports = [
            port
            for port, heard in self.calls.listening.items()
            if heard.pids and os.getpid() not in heard.pids and port not in NOT_HTTP
        ]
        likely = [
            port
            for port in ports
            if not any(is_no_server(pid) for pid in self.calls.holders(port))
            and self.calls.leads_to_a_model(set(self.calls.holders(port)), {os.getpid()})
        ]
        candidates = [self.local_node(port) for port in likely[:_MAX_CANDIDATES]]
        await self.ask_level(candidates, chats=False)  # most of them belong to nobody's chain
        clients = self.calls.clients()
        by_key = {
            node.key: node
            for node in candidates
            if node.answers.llm or (node.answers.silent and clients[node.port]) or self.weigh(node, [])
        }
        for node in by_key.values():
            node.upstream = dict.fromkeys(
                (below.key for below, _ in self.called_by(node, set(self.tree(node))) if below.key in by_key), ""
            )
        called = {key for node in by_key.values() if relays(node, by_key) for key in node.upstream}
        roots = [node for key, node in by_key.items() if key not in called] or list(by_key.values())
        hidden = sum(bool(heard.hidden) for heard in self.calls.listening.values())
        self.nodes.clear()
        self.notes.clear()
        if not roots:
            unseen = f", and {hidden} ports of other users, that only root can look into" if hidden else ""
            raise MisuseError(
                f"no program that listens on this host ({len(ports)} ports of processes that can be seen{unseen}) serves models",
                remedy="try: vindicate diagnose http://HOST:PORT, or --stack FILE",
            )
        best = max(roots, key=lambda one: (clients[one.port] > 0, len(reached(one.key, by_key)), clients[one.port]))
        self.others = [one for one in roots if one is not best]
        return best.url

    # ---- the result ----------------------------------------------------------------------------------------------

    def found(self, entry: Node, nodes: list[Node]) -> Found:
        by_key = {node.key: node for node in nodes}
        for node in nodes:
            if not relays(node, by_key):
                node.upstream = {}
        below = reached(entry.key, by_key)
        kept = {key: node for key, node in by_key.items() if key in below and (node is entry or belongs(node, by_key))}
        parts = parts_of(kept)
        # One request that went to several at once went to the sides of a pair.
        sides = {_key(one.host, one.port) for found in self.handed.values() if len(found) > 1 for one in found}
        services = {
            node.name: Service(
                name=node.name,
                role=part.role,
                engine=part.engine,
                url=node.url,
                metrics=(node.answers.metrics if part.role != "proxy" else None) or node.url + "/metrics",
                health="/health",
                upstream=tuple(kept[one].name for one in node.upstream if one in kept),
                opaque=part.opaque,
                is_side=part.role == "engine" and node.key in sides,
            )
            for node, part in ((kept[key], parts[key]) for key in kept)
        }
        for node in kept.values():
            if node.unknown and not node.is_engine:
                self.notes.append(
                    f"{node.name} also calls {', '.join(node.unknown.values())}: whether requests go there is not known, so "
                    "nothing was sent there; if they do, declare it in a stack file (a Unix socket cannot be: what passes there is not seen)"
                )
        ours = {pid for node in kept.values() for pid in self.tree(node)}
        others = tuple(one.url for one in self.others if not ours & set(one.pids))
        notes, spent = tuple(self.notes), len(self.handed)
        stack = Stack(name="discovered", entry=entry.name, services=services, others=others, notes=notes, spent=spent)
        names = {key: node.name for key, node in kept.items()}
        return Found(stack, {names[key]: part for key, part in parts.items()}, {n.name: n for n in kept.values()})


def _key(host: str, port: int) -> str:
    bare = host.strip("[]")
    return str(port) if is_local(bare) else f"{bare}:{port}"


def _url(said: Named | None) -> str | None:
    return f"http{'s' if said.secure else ''}://{said.host}:{said.port}" if said is not None else None


def _user(uids: tuple[int, ...]) -> str:
    try:
        return f"user {pwd.getpwuid(uids[0]).pw_name}"
    except (KeyError, IndexError):
        return f"user {uids[0]}" if uids else "another user"
