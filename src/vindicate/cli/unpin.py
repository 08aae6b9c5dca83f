"""`vindicate unpin`: requests that an engine will never let go, aborted by their full ids, and read back to be gone."""

from typing import TYPE_CHECKING

import click

from vindicate.cli.option import DURATION, agree, example, json_option, print_json, say, stack_option, yes_options
from vindicate.errors import MisuseError

if TYPE_CHECKING:
    from vindicate.operate.unpin import UnpinPlan
    from vindicate.stack.model import Stack

__all__ = ["unpin"]


@click.command(epilog=example("vindicate unpin --older-than 5m --dry-run"))
@stack_option
@click.option(
    "--service", "services", multiple=True, metavar="NAME", help="Only at this engine; may be given several times."
)
@click.option(
    "--older-than", "older_than_s", type=DURATION, default="5m", show_default=True, help="Younger ones are left alone."
)
@click.option(
    "--rid",
    "rids",
    multiple=True,
    metavar="ID",
    help="Abort this request, by its full id, whatever its age; may be given several times.",
)
@yes_options
@json_option
def unpin(
    stack_file: str | None,
    services: tuple[str, ...],
    older_than_s: float,
    rids: tuple[str, ...],
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Abort requests that are pinned in prefill or decode, by their full ids.

    No engine lists its requests: their ids come from its request log (SGLang and the reference stack: --log-requests), whose
    file the stack file names. Two looks at each engine tell what it holds and whether tokens move; what may be a long answer is left alone. An id
    that begins another's is never sent, as engines match by prefix. Afterwards it is read back that they are gone.

    Exit code: 0 nothing is pinned, or all of it is gone; 3 it cannot be told from outside; 4 some could not be aborted.
    """
    from vindicate.operate.lock import locked
    from vindicate.operate.unpin import abort_pins, find_pins
    from vindicate.stack.file import load_stack
    from vindicate.view.unpin import outcome_lines, plan_lines

    stack = load_stack(stack_file)
    if any(not rid.strip() for rid in rids):
        raise MisuseError("--rid is empty", remedy="give the whole id of one request")
    plan = find_pins(stack, _engines(stack, services), older_than_s=older_than_s, rids=rids)
    say("\n".join(plan_lines(plan)))
    todo = [pin for pin in plan.pins if pin.state == "pinned"]
    if todo and not dry_run:
        agree(f"Abort {'this request' if len(todo) == 1 else f'these {len(todo)} requests'}?", yes=yes)
        with locked(stack, "unpin"):
            plan = abort_pins(plan)
        say("\n".join(outcome_lines(plan)))
    code = _code(plan, dry_run=dry_run)
    steps = _next(plan)
    if as_json:
        print_json(_document(plan, steps))
    else:
        print("\n".join([_result(plan, dry_run=dry_run), *(f"next: {step}" for step in steps)]))
    return code


def _code(plan: "UnpinPlan", *, dry_run: bool) -> int:
    states = {pin.state for pin in plan.pins}
    if "held" in states or ("refused" in states and not dry_run):
        return 4
    return 3 if plan.unclear and "gone" not in states and not (dry_run and "pinned" in states) else 0


def _result(plan: "UnpinPlan", *, dry_run: bool) -> str:
    count = {state: sum(pin.state == state for pin in plan.pins) for state in ("pinned", "gone", "held", "refused")}
    if not plan.pins:
        return "nothing is known to be pinned" if plan.unclear else "nothing is pinned"
    if dry_run:
        return f"{count['pinned']} would be aborted, {count['refused']} would not"
    return f"{count['gone']} aborted and gone, {count['held']} still held, {count['refused']} not aborted"


def _next(plan: "UnpinPlan") -> list[str]:
    """The commands that help where aborting does not."""
    stuck = {name for pin in plan.pins if pin.state in ("held", "refused") for name in pin.engines}
    names = [one.service.name for one in plan.engines if one.service.name in stuck or one.service.name in plan.restart]
    steps = [f"vindicate stack restart {' '.join(names)}"] if names else []
    if plan.unclear:
        steps.append("vindicate watch --for 1m, which tells pinned from rotating")
    return steps


def _document(plan: "UnpinPlan", steps: list[str]) -> dict[str, object]:
    return {
        "schema": "vindicate.unpin/1",
        "engines": [
            {
                "service": one.service.name,
                "held": one.held,
                "stages": one.stages,
                "ids_known": one.knows,
                "gated": one.gated,
            }
            for one in plan.engines
        ],
        "pins": plan.pins,
        "unclear": plan.unclear,
        "next": steps,
    }


def _engines(stack: "Stack", names: tuple[str, ...]) -> tuple[str, ...]:
    from vindicate.operate.unpin import WORKERS

    there = tuple(one.name for one in stack.services.values() if one.role in WORKERS)
    for name in names:
        if stack.service(name).role not in WORKERS:
            raise MisuseError(
                f"{name} is a {stack.service(name).role}, and holds no request of its own",
                remedy=f"one of: {', '.join(there)}",
            )
    if not there:
        raise MisuseError(
            f"there is no prefill, decode or engine in {stack.file or 'this chain'}",
            remedy="declare one: vindicate init",
        )
    return names or there
