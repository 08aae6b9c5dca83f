"""What evidence says was so when it was taken → what each field of the system's identity is now, and what has changed since; pure."""

from collections.abc import Iterable, Mapping

from vindicate.ledger.scope import Known, same
from vindicate.record.ledger import KNOB_HELD, Evidence

__all__ = ["changed_since", "identity", "newest"]

# What `vindicate ab` writes down beside its effects and is no version of anything: two measurements may differ in it.
_NOT_IDENTITY = ("stack", "metric", "engines", "url", "workload", "device", "kernel", "vindicate")


def identity(item: Evidence) -> dict[str, str]:
    """The fields of *item*'s fingerprint that say which system it was taken on: ``nccl``, ``sglang`` and the like."""
    return {
        field.lower(): value
        for field, value in item.fingerprint.items()
        if value and field not in _NOT_IDENTITY and not field.startswith(KNOB_HELD)
    }


def newest(items: Iterable[Evidence], at: Mapping[str, str]) -> dict[str, Known]:
    """The value of each field in the evidence that was taken last.

    Args:
        at: When each was taken, by id.
    """
    found: dict[str, tuple[str, Known]] = {}
    for item in items:
        if not item.fingerprint:
            continue
        taken = at.get(item.id, "")
        for field, value in identity(item).items():
            if field not in found or found[field][0] <= taken:
                found[field] = taken, Known(value=value, how=f"{item.id}, {taken[:10]}")
    return {field: known for field, (_, known) in found.items()}


def changed_since(item: Evidence, present: Mapping[str, Known]) -> tuple[str, ...]:
    """What is not as it was when *item* was taken; what either side does not say is not told."""
    return tuple(
        f"measured with {field} {was}; now {now}"
        for field, was in identity(item).items()
        if field in present and (now := present[field].value) is not None and not same(was, now)
    )
