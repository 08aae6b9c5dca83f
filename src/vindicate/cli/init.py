"""`vindicate init`: the chain of this host → a commented stack file, with the reason for every line."""

from pathlib import Path

import click

from vindicate.cli.option import example, json_option, print_json, say
from vindicate.errors import CannotError, MisuseError

__all__ = ["init"]

_FILE = Path("vindicate.toml")


@click.command(epilog=example("vindicate init --dry-run"))
@click.argument("url", required=False)
@click.option("--force", is_flag=True, help="Replace a vindicate.toml that is there; it is kept as vindicate.toml.bak.")
@click.option("--dry-run", is_flag=True, help="Print the file instead of writing it.")
@json_option
def init(*, url: str | None, force: bool, dry_run: bool, as_json: bool) -> int:
    """Draw the chain of this host and write a commented vindicate.toml here.

    Reads listening sockets, connections, command lines and start scripts, and asks the services of the chain what they are;
    to anything else nothing is sent. URL is where clients call; without it the likeliest chain is taken.
    """
    if _FILE.exists() and not force and not dry_run:
        raise MisuseError(
            f"{_FILE.absolute()} is there already",
            remedy="add --force to replace it, or --dry-run to see what would be written",
        )
    from vindicate.stack.discover import search
    from vindicate.stack.draft import draft_of
    from vindicate.stack.versions import versions_of

    found = search(url)
    draft = draft_of(found, versions_of(found.stack), Path.cwd())
    if not dry_run:
        _write(draft.text)
    if as_json:
        file = None if dry_run else str(_FILE.absolute())
        print_json({"schema": "vindicate.init/1", "file": file, "services": draft.services, "notes": draft.notes})
        return 0
    if dry_run:
        print(draft.text, end="")
        return 0
    for line in draft.services:
        calls = f" > {', '.join(line.calls)}" if line.calls else ""
        version = f" {line.version}" if line.version else ""
        print(
            f"{line.name:12} {line.engine}{version}  {line.url}{calls}"
            + (f"\n{'':12} {line.because}" if line.because else "")
        )
    for note in draft.notes:
        say(f"note: {note}")
    print(f"wrote {_FILE}\nnext: read it, then vindicate diagnose")
    return 0


def _write(text: str) -> None:
    from vindicate.stack.file import read_stack

    part = _FILE.with_name(_FILE.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        read_stack(part)  # what we write can be read
        if _FILE.exists():
            _FILE.replace(_FILE.with_name(_FILE.name + ".bak"))
        part.replace(_FILE)
    except OSError as error:
        raise CannotError(
            f"{_FILE.absolute()} cannot be written: {error.strerror}", remedy="run it in a folder that you own"
        ) from error
    finally:
        part.unlink(missing_ok=True)
