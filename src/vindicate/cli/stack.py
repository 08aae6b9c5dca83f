"""`vindicate stack`: start, stop, restart and look at the services of a stack file; write one to try things on."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vindicate.cli.option import agree, example, json_option, print_json, say, stack_option, timeout_option, yes_options
from vindicate.errors import MisuseError
from vindicate.redact import redact_value

if TYPE_CHECKING:
    from vindicate.operate.status import ServiceStand

__all__ = ["stack"]


@click.group(epilog=example("vindicate stack status"))
def stack() -> None:
    """Start, stop and look at the services of a stack file."""


@stack.command(epilog=example("vindicate stack init --reference ./try"))
@click.option(
    "--reference", "directory", metavar="DIR", required=True, help="Folder for the scripts and the stack file."
)
@click.option(
    "--router", default="builtin", show_default=True,
    help="Which router stands in front: builtin, or sglang-router or smg where they are installed.",
)  # fmt: skip
@click.option(
    "--device",
    default="simulated:rtx-pro-6000",
    show_default=True,
    help="What the engines compute on: a simulated card (simulated:h200 is another), or cpu, for real.",
)
@click.option(
    "--with-proxy", "proxy_fault", metavar="FAULT", help="Also put a proxy in front that rehearses this fault, or none."
)
def init(directory: str, router: str, device: str, proxy_fault: str | None) -> int:
    """Write a small reference stack: prefill, decode and router, one start script each, and vindicate.toml."""
    folder = Path(directory)
    if (folder / "vindicate.toml").exists():
        raise MisuseError(f"{folder / 'vindicate.toml'} is there already", remedy="name an empty or new folder")
    from vindicate.rehearse.fault import Fault
    from vindicate.rehearse.reference_stack import write_reference_stack

    Fault(mechanism="none" if proxy_fault is None else proxy_fault)  # says which faults there are
    file = write_reference_stack(
        folder, device=device, router=router, proxy=proxy_fault is not None, proxy_fault=proxy_fault or "none"
    )
    print(f"wrote {file}\nnext: vindicate stack up --stack {file}")
    return 0


@stack.command(epilog=example("vindicate stack up"))
@stack_option
@timeout_option
@json_option
def up(stack_file: str | None, timeout_s: float, *, as_json: bool) -> int:
    """Start what is not running, and wait until all of it is healthy.

    When one service fails, those that this call started are stopped again. Nothing that runs already is touched.
    """
    from vindicate.operate.interrupt import interruptible
    from vindicate.operate.lock import locked
    from vindicate.operate.services import bring_up
    from vindicate.stack.file import load_stack

    declared = load_stack(stack_file)
    with locked(declared, "stack up"), interruptible():
        bring_up(declared, tuple(declared.services), say=say, timeout_s=timeout_s)
    return _show(stack_file, as_json=as_json)


@stack.command(epilog=example("vindicate stack down"))
@stack_option
@json_option
def down(stack_file: str | None, *, as_json: bool) -> int:
    """Stop every service that was started from here, and everything those started in turn; leave nothing behind."""
    from vindicate.operate.interrupt import interruptible
    from vindicate.operate.lock import locked
    from vindicate.operate.services import bring_down, sweep_undeclared
    from vindicate.operate.status import look
    from vindicate.stack.file import load_stack

    declared = load_stack(stack_file)
    with locked(declared, "stack down"), interruptible():
        stopped = (*bring_down(declared, tuple(declared.services), say=say), *sweep_undeclared(declared, say=say))
    if as_json:
        stands = tuple(_without_secrets(stand) for stand in look(declared))
        print_json({"schema": "vindicate.stack/1", "services": stands, "stopped": stopped})
    else:
        print(f"stopped: {', '.join(stopped)}" if stopped else "nothing was running that had been started from here")
    return 0


@stack.command(epilog=example("vindicate stack status --json"))
@stack_option
@json_option
def status(stack_file: str | None, *, as_json: bool) -> int:
    """Show each service: its state, processes, and the knob values that its live processes really hold.

    Exits 1 when a live process holds another value than its script declares.
    """
    return _show(stack_file, as_json=as_json)


@stack.command(epilog=example("vindicate stack restart decode"))
@click.argument("services", nargs=-1, required=True, metavar="SERVICE…")
@stack_option
@timeout_option
@yes_options
@json_option
def restart(
    services: tuple[str, ...], stack_file: str | None, timeout_s: float, *, dry_run: bool, yes: bool, as_json: bool
) -> int:
    """Stop services and all that must restart with them, and start them again.

    One that was started by hand is stopped too, and started from its launcher. At the end the router, or the engine, is asked
    one small request; exits 1 when it does not answer.
    """
    from vindicate.operate.answers import asked_after, wait_for_answer
    from vindicate.operate.health import place_of
    from vindicate.operate.interrupt import interruptible, shielded
    from vindicate.operate.lock import locked
    from vindicate.operate.services import is_there, running_by_hand
    from vindicate.operate.services import restart as restart_services
    from vindicate.stack.file import load_stack

    declared = load_stack(stack_file)
    order = declared.start_order(declared.restart_set(services))
    say(f"stop:  {', '.join(reversed(order))}\nstart: {', '.join(order)}")
    for name in order:
        if hand := running_by_hand(declared, declared.service(name)):
            say(
                f"note:  {name} ({place_of(hand[0])}) was started by hand; it will not come back there, but run under its launcher"
            )
    if dry_run:
        return 0
    agree("Restart these together?", yes=yes)
    with locked(declared, f"stack restart {' '.join(services)}"), interruptible():
        try:
            restart_services(declared, services, say=say, timeout_s=timeout_s)
        except BaseException:
            with shielded():
                down = [name for name in order if not is_there(declared.service(name))]
                if down:
                    again = f"vindicate stack restart {' '.join(services)}"
                    say(f"not running now: {', '.join(sorted(down))}; start again: {again}")
            raise
        if asked := asked_after(declared):
            say(f"asking {asked.name} one small request ...")
        reached = wait_for_answer(declared)
        say(reached.text if reached.good else f"{reached.text}; next: vindicate diagnose")
    return max(_show(stack_file, as_json=as_json), int(not reached.good))


def _without_secrets(stand: "ServiceStand") -> "ServiceStand":
    knobs = {
        name: replace(
            knob,
            declared=redact_value(name, knob.declared),
            live={pid: redact_value(name, value) for pid, value in knob.live.items()},
        )
        for name, knob in stand.knobs.items()
    }
    return replace(stand, knobs=knobs)


def _show(stack_file: str | None, *, as_json: bool) -> int:
    from vindicate.operate.status import look
    from vindicate.stack.file import load_stack

    stands = tuple(_without_secrets(stand) for stand in look(load_stack(stack_file)))
    if as_json:
        print_json({"schema": "vindicate.stack/1", "services": stands})
    else:
        from vindicate.view.stack import stack_lines

        print("\n".join(stack_lines(stands)))
    return 1 if any(knob.drift for stand in stands for knob in stand.knobs.values()) else 0
