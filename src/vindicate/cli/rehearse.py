"""`vindicate rehearse`: things that misbehave on request."""

from pathlib import Path

import click

from vindicate.cli.option import DURATION, example
from vindicate.errors import MisuseError

__all__ = ["rehearse"]


@click.group(epilog=example("vindicate rehearse proxy --list-faults"))
def rehearse() -> None:
    """Run things that misbehave on request, to see whether the guilty one is found."""


@rehearse.command(
    epilog=example(
        "vindicate rehearse proxy --listen 127.0.0.1:4000 --upstream http://127.0.0.1:8000 --fault proxy.connector_starvation"
    )
)
@click.option(
    "--listen", metavar="HOST:PORT", default="127.0.0.1:0", show_default=True, help="Port 0 takes a free one."
)
@click.option("--upstream", metavar="URL", help="Where requests go.")
@click.option("--fault", metavar="MECHANISM", help="What is wrong with it; none is a correct proxy.  [default: none]")
@click.option(
    "--fault-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read MECHANISM [VARIANT] from a file, so that the command line does not tell.",
)
@click.option(
    "--variant",
    metavar="pinned|permit",
    help="Of the starvation: sockets kept, or only a count lost.  [default: pinned]",
)
@click.option("--after", type=click.IntRange(min=0), default=0, help="Treat the first N requests correctly.")
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    help="Upstream exchanges at a time.  [default: 4 with the starvation, else 1024]",
)
@click.option("--limit", type=DURATION, default="10s", show_default=True, help="The constant of the time-out faults.")
@click.option("--list-faults", is_flag=True, help="List the faults and stop.")
def proxy(
    *,
    listen: str,
    upstream: str | None,
    fault: str | None,
    fault_file: Path | None,
    variant: str | None,
    after: int,
    slots: int | None,
    limit: float,
    list_faults: bool,
) -> int:
    """Run a streaming reverse proxy with one fault, until Ctrl-C or SIGTERM.

    The first line on standard output says where it listens. Nothing it prints afterwards tells the fault.
    """
    from vindicate.rehearse.fault import FAULTS, Fault, read_fault

    if list_faults:
        width = max(map(len, FAULTS))
        for name, says in FAULTS.items():
            click.echo(f"{name:<{width}}  {says}")
        return 0
    if upstream is None:
        raise MisuseError("a proxy needs --upstream", remedy="try: --upstream http://127.0.0.1:8000")
    if fault is not None and fault_file is not None:
        raise MisuseError("--fault and --fault-file were both given", remedy="leave one out")
    if fault_file is not None:
        fault, from_file = read_fault(fault_file)
        variant = variant or from_file
    mechanism = "none" if fault is None else fault
    import asyncio

    from vindicate.rehearse.proxy import Proxy, parse_listen, parse_upstream, serve

    plan = Fault(
        mechanism=mechanism,
        variant=variant or "pinned",
        after=after,
        slots=slots or (4 if mechanism == "proxy.connector_starvation" else 1024),
        limit_s=limit,
    )
    host, port = parse_listen(listen)
    running = Proxy(parse_upstream(upstream), plan)
    asyncio.run(serve(host, port, running, on_ready=lambda url: click.echo(f"listening on {url}")))
    return 0
