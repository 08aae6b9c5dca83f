"""A stack, and a book that asks → what live workers say now of their engine, their libraries and their cards; only reads."""

from collections.abc import Collection, Mapping

from vindicate.errors import MisuseError
from vindicate.ledger.fingerprint import identity
from vindicate.ledger.scope import Known, parse_scope
from vindicate.ledger.state import Book
from vindicate.stack.libraries import card_versions, library_versions
from vindicate.stack.model import ENGINES, Stack
from vindicate.stack.process import process_tree, service_pids
from vindicate.stack.versions import versions_of

__all__ = ["asked_fields", "seen_now", "versions_now"]

_RELAYS = ("proxy", "gateway", "router")
_Told = dict[str, dict[str | None, list[str]]]
"""By field and value, who says so."""


def seen_now(stack: Stack | None, book: Book) -> Book:
    """*book* where the versions that live workers have now count before those that were written down."""
    fields = asked_fields(book)
    return book.with_present(_live(stack, fields)) if stack and fields else book


def versions_now(stack: Stack) -> dict[str, str]:
    """The version of every engine, library and card that live workers agree on, by field, as a fingerprint takes it."""
    return {field: known.value for field, known in _live(stack).items() if known.value is not None}


def asked_fields(book: Book) -> set[str]:
    """The fields that some scope or some measurement on record speaks of; nobody is asked for others."""
    found = {field for pairs in book.effects.values() for item, _ in pairs for field in identity(item)}
    for record in book.claims.values():
        try:
            found |= {item.field for item in parse_scope(record.claim.scope)} if record.claim.scope else set()
        except MisuseError:  # an older ledger took any words; they limit nothing
            continue
    return found


def _live(stack: Stack, fields: Collection[str] | None = None) -> dict[str, Known]:
    """By field; only these *fields*, where some are given."""
    workers = [service for service in stack.services.values() if service.role not in _RELAYS]
    mapped: _Told = {}
    local = False
    for service in workers:
        try:
            pids = process_tree(service_pids(service))
        except MisuseError:  # its pidfile holds no number: what it runs is not known
            continue
        local |= bool(pids)
        for pid in pids:
            for field, value in library_versions(pid).items():
                mapped.setdefault(field, {}).setdefault(value, []).append(f"{service.name} {pid}")
    engines: _Told = {}
    if fields is None or any(service.engine in fields for service in workers if service.engine in ENGINES):
        for name, version in versions_of(stack).items():
            if (engine := stack.service(name).engine) != "generic":
                engines.setdefault(engine, {}).setdefault(version, []).append(name)
    cards = {
        field: Known(value=value, how="this host, now") for field, value in (card_versions() if local else {}).items()
    }
    found = {**cards, **_agreed(mapped), **_agreed(engines)}  # an engine's own word counts most
    return found if fields is None else {field: known for field, known in found.items() if field in fields}


def _agreed(told: Mapping[str, Mapping[str | None, list[str]]]) -> dict[str, Known]:
    found = {}
    for field, values in told.items():
        if len(values) == 1 and None not in values:
            ((value, who),) = values.items()
            found[field] = Known(value=value, how=f"{', '.join(who[:3])}, now")
        elif None in values:
            found[field] = Known(value=None, how=f"it was installed anew after {', '.join(values[None][:3])} began")
        else:
            differ = "; ".join(f"{value} in {', '.join(who[:3])}" for value, who in values.items())
            found[field] = Known(value=None, how=f"processes differ: {differ}")
    return found
