"""What was found of each service, its answers and whom it calls → its role and engine in the chain, with the reason; pure but for argv."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from vindicate.stack.ask import Answers
from vindicate.stack.named import argv_of, command_of, is_engine

__all__ = ["HANDED_ON", "Node", "Part", "belongs", "parts_of", "reached", "relays"]

HANDED_ON = "a request of ours was handed on to it"
_PROXIES = ("nginx", "haproxy", "litellm")


@dataclass(slots=True)
class Node:
    """One address that may be a service.

    Attributes:
        upstream: Key of each service that it calls → how that is known.
        unknown: What it calls too, in words, of which it is not known whether requests go there; nothing is sent to these.
        hidden: Its processes are another user's.
        option: What of its caller names it: an option, or its metrics.
    """

    url: str
    port: int
    pids: tuple[int, ...]
    remote: bool = False
    answers: Answers = field(default_factory=Answers)
    upstream: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    hidden: bool = False
    option: str = ""

    @property
    def key(self) -> str:
        """The port, or `HOST:PORT` on another host."""
        return f"{urlsplit(self.url).hostname}:{self.port}" if self.remote else str(self.port)

    @property
    def name(self) -> str:
        """`pid:NAME:PORT`, or `HOST:PORT` on another host."""
        return self.key if self.remote else f"pid:{command_of(self.pids)}:{self.port}"

    @property
    def is_engine(self) -> bool:
        """Whether one of its processes is an engine by its program or options."""
        return any(is_engine(pid) for pid in self.pids)


@dataclass(frozen=True, slots=True)
class Part:
    """What a node is. *opaque*: it may call services that were not seen."""

    role: str
    engine: str
    because: str
    opaque: bool = False


def relays(node: Node, nodes: Mapping[str, Node]) -> bool:
    """Whether what *node* calls is its upstream. One that says what an engine says is a relay only if somebody below says the same.

    Otherwise it is that engine, and what it calls are its peers: a KV link, a bootstrap port, telemetry.
    """
    said = node.answers
    if said.mode is None and said.engine is None:
        return True
    below = [nodes[key].answers for key in node.upstream if key in nodes]
    return any(one.mode == said.mode and (said.engine is None or one.engine == said.engine) for one in below)


def reached(key: str, nodes: Mapping[str, Node]) -> set[str]:
    """*key* and all below it."""
    found, todo = set[str](), [key]
    while todo:
        here = todo.pop()
        if here not in found and here in nodes:
            found.add(here)
            todo.extend(nodes[here].upstream)
    return found


def belongs(node: Node, nodes: Mapping[str, Node]) -> bool:
    """Whether *node* is a part of the chain: it calls one, answers like one, or is silent or dead where one is called."""
    if any(below in nodes for below in node.upstream):
        return True
    said = node.answers
    return said.llm or said.silent or said.refused or node.remote


def parts_of(nodes: Mapping[str, Node]) -> dict[str, Part]:
    """Role and engine of each of *nodes*."""
    roles: dict[str, tuple[str, str]] = {}
    for key in nodes:
        _role(key, nodes, roles)
    _name_dead_leg(nodes, roles)
    return {key: _part(nodes[key], nodes, *roles[key]) for key in nodes}


def _part(node: Node, nodes: Mapping[str, Node], role: str, because: str) -> Part:
    engine, why = _engine(node, role)
    below = [why for key, why in node.upstream.items() if key in nodes]
    once = HANDED_ON in below  # one request shows one of several workers; the others may be among what it calls too
    may_call = node.hidden or (bool(node.unknown) and not node.is_engine)
    opaque = (once or not below) and not node.answers.refused and may_call
    return Part(role, engine, "; ".join(text for text in (because, why) if text), opaque)


def _role(key: str, nodes: Mapping[str, Node], roles: dict[str, tuple[str, str]]) -> str:
    if key in roles:
        return roles[key][0]
    roles[key] = ("engine", "")  # ends a loop
    node = nodes[key]
    said = node.answers
    upstream = [other for other in node.upstream if other in nodes]
    below = [_role(other, nodes, roles) for other in upstream]
    over_router = any(nodes[other].answers.router for other in upstream)  # then its page is not its own
    kv_role = _kv_role(node)
    if said.router and not over_router:
        roles[key] = ("router", f"its metrics are those of {said.router}")
    elif len(below) > 1 or {"prefill", "decode"} & set(below):
        roles[key] = ("router", f"it calls {len(below)} services: {', '.join(upstream)}")
    elif below:
        roles[key] = ("proxy", f"it calls one service: {upstream[0]}")
    elif said.mode in ("prefill", "decode"):
        roles[key] = (said.mode, "it says so: disaggregation_mode")
    elif kv_role:
        roles[key] = ({"kv_producer": "prefill", "kv_consumer": "decode"}[kv_role], f"its arguments say {kv_role}")
    elif (said.engine or said.llm) and (side := _side_named(node)):
        roles[key] = (side, f"its caller names it so: {node.option}")
    else:
        roles[key] = ("engine", "it calls no service that is known" if node.answers.spoke else "")
    return roles[key][0]


def _name_dead_leg(nodes: Mapping[str, Node], roles: dict[str, tuple[str, str]]) -> None:
    """A dead or silent leaf beside one side of a split pair is the other side, unless the option that names it says which it is."""
    for node in nodes.values():
        sides = {roles[key][0] for key in node.upstream if key in nodes} & {"prefill", "decode"}
        for key in node.upstream:
            said_nothing = key in nodes and (nodes[key].answers.refused or nodes[key].answers.silent)
            if said_nothing and roles[key][0] == "engine":
                side = _side_named(nodes[key])
                other = {"prefill": "decode", "decode": "prefill"}.get(next(iter(sides), ""), "engine")
                if side:
                    roles[key] = (side, f"its caller names it so: {nodes[key].option}")
                elif len(sides) == 1:
                    roles[key] = (other, f"it says nothing, and stands beside a {next(iter(sides))}")


def _side_named(node: Node) -> str:
    """Which side of a split pair its caller says that it is, by the option that names it (``--prefill URL``) or in its metrics."""
    said = [side for side in ("prefill", "decode") if side in node.option.lower()]
    return said[0] if len(said) == 1 else ""


def _engine(node: Node, role: str) -> tuple[str, str]:
    said = node.answers
    if role != "proxy" and any("vindicate.reference" in argv_of(pid) for pid in node.pids):
        return "reference", "its command line says vindicate.reference"
    if role in ("proxy", "router", "gateway"):
        if said.router and role == "router":
            return said.router, ""
        words = " ".join(word for pid in node.pids[:1] for word in argv_of(pid)[:3])
        found = next((name for name in _PROXIES if name in words), "generic")
        return found, f"its command line says {found}" if found != "generic" else ""
    if said.engine:
        return said.engine, f"its metrics are those of {said.engine}"
    return ("sglang", "it answers /model_info as sglang does") if said.mode else ("generic", "")


def _kv_role(node: Node) -> str:
    words = " ".join(word for pid in node.pids[:1] for word in argv_of(pid))
    match = re.search(r"kv_producer|kv_consumer", words)
    return match[0] if match else ""
