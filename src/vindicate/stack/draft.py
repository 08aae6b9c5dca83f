"""A discovered chain → the text of a stack file, with the reason for each line beside it."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vindicate.redact import redact_text
from vindicate.stack.discover import Found
from vindicate.stack.model import ROLES, Service
from vindicate.stack.started import Started, started_by

__all__ = ["Draft", "Line", "draft_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One service of the draft. *calls*: each upstream → how that is known; *settings*: what its process holds."""

    name: str
    role: str
    engine: str
    version: str | None
    url: str
    because: str
    calls: dict[str, str]
    script: str | None
    settings: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """The *text* of a stack file, its *services* and what could not be found out."""

    text: str
    services: tuple[Line, ...]
    notes: tuple[str, ...]


def draft_of(found: Found, versions: dict[str, str], folder: Path) -> Draft:
    """Write the file for *found*, to stand in *folder*.

    Args:
        versions: By name of the discovered service.
    """
    stack = found.stack
    path = sorted(stack.path_from(stack.entry), key=lambda name: ROLES.index(stack.service(name).role))
    names = _names(path, {name: one.role for name, one in stack.services.items()})
    started = {name: _started(found, name) for name in names}
    lines = tuple(
        Line(
            name=new,
            role=stack.service(old).role,
            engine=stack.service(old).engine,
            version=versions.get(old),
            url=stack.service(old).url,
            because=redact_text(found.parts[old].because),
            calls={names[below]: _why(found, old, below) for below in path if below in stack.service(old).upstream},
            script=str(started[old].script) if started[old].script else None,
            settings=dict(started[old].settings),
        )
        for old, new in names.items()
    )
    blocks = [_head(names[stack.entry], [*stack.notes, *(f"not in this file: {url}" for url in stack.others)])]
    blocks += [
        _block(line, stack.service(old), started[old], folder, _partner(line, lines))
        for (old, _), line in zip(names.items(), lines, strict=True)
    ]
    blocks += _knobs(lines, {new: started[old] for old, new in names.items()})
    return Draft(text="\n".join(blocks), services=lines, notes=stack.notes)


def _names(path: Sequence[str], roles: Mapping[str, str]) -> dict[str, str]:
    """Discovered name → the name in the file: its role, numbered where there are several."""
    total, seen, names = Counter(roles[old] for old in path), Counter[str](), dict[str, str]()
    for old in path:
        role = roles[old]
        seen[role] += 1
        names[old] = role if total[role] == 1 else f"{role}-{seen[role]}"
    return names


def _started(found: Found, name: str) -> Started:
    pids = found.nodes[name].pids
    return started_by(pids[0]) if pids else Started()


def _why(found: Found, name: str, below: str) -> str:
    return found.nodes[name].upstream.get(found.nodes[below].key, "")


def _partner(line: Line, lines: Iterable[Line]) -> str | None:
    """The other half of a split pair, where there is one of each."""
    other = {"prefill": "decode", "decode": "prefill"}.get(line.role)
    roles = Counter(one.role for one in lines)
    one_each = other is not None and roles[line.role] == roles[other] == 1
    return next(one.name for one in lines if one.role == other) if one_each else None


def _head(entry: str, notes: Iterable[str]) -> str:
    remarks = "".join(f"# {_comment(note)}\n" for note in notes)
    return (
        "# Written by: vindicate init, from what this host shows. Check it, and correct what it got wrong.\n"
        f'{remarks}\n[stack]\nname  = "discovered"\nentry = {_text(entry)}    # the service that clients call\n'
    )


def _block(line: Line, service: Service, started: Started, folder: Path, partner: str | None) -> str:
    rows = [f"# {_comment(line.because)}"] if line.because else []
    rows += [f"# it calls {name}: {_comment(why)}" for name, why in line.calls.items() if why]
    rows += [f"[services.{line.name}]", f"role     = {_text(line.role)}"]
    rows.append(
        f"engine   = {_text(line.engine)}" + (f"    # version {_comment(line.version)}" if line.version else "")
    )
    rows.append(f"url      = {_text(line.url)}")
    if service.metrics != f"{service.url}/metrics":
        rows.append(f"metrics  = {_text(service.metrics)}")
    if line.calls:
        rows.append(f"upstream = {json.dumps([*line.calls])}")
    if line.role == "prefill" and started.bootstrap_port is not None:
        rows.append(f"bootstrap_port = {started.bootstrap_port}")
    if started.gpus:
        rows.append(f"gpus     = {json.dumps(started.gpus)}")
    if started.script is not None:
        log = f", log = {_text(_near(started.log, folder))}" if started.log else ""
        rows.append(f'launcher = {{ kind = "script", file = {_text(_near(started.script, folder))}{log} }}')
    else:
        unit = f"; its control group is {_comment(started.unit)}" if started.unit else ""
        if started.unit and started.unit.endswith(".service"):
            unit += ' (where that is a unit of its own: { kind = "systemd", unit = "…" })'
        rows.append(f"# launcher: no start script was found{unit}; without one, a person restarts it")
    if partner is not None:
        rows.append(f"restart_with = [{_text(partner)}]    # the two hold each other's connections")
    return "\n".join(rows) + "\n"


def _knobs(lines: Iterable[Line], started: dict[str, Started]) -> list[str]:
    holders: dict[str, list[Line]] = {}
    for line in lines:
        for name in line.settings:
            holders.setdefault(name, []).append(line)
    blocks = []
    for name, its in sorted(holders.items()):
        rows = []
        for line in its:
            number = dict(started[line.name].lines).get(name)
            where = f", set in {line.script}:{number}" if number and line.script else ", from its environment"
            rows.append(f"# {line.name} holds {_comment(repr(line.settings[name]))}{_comment(where)}")
        rows += [f"[knobs.{name}]", f"services = {json.dumps([line.name for line in its])}", 'kind     = "env"']
        blocks.append("\n".join(rows) + "\n")
    return blocks


def _near(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _comment(text: str) -> str:
    return " ".join("".join(sign if sign.isprintable() else " " for sign in redact_text(text)).split())
