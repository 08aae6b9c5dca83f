"""A start script and a variable's name → what the script sets it to; and the script with only that value changed."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import tree_sitter

from vindicate.errors import MisuseError
from vindicate.operate.shell_run import line_stop, nodes_above
from vindicate.operate.shell_script import ScriptValue, ShellScript
from vindicate.operate.shell_word import quoted, quoting

__all__ = ["ScriptValue", "check_syntax", "edit_value", "read_value"]

_BARE_DEFAULT = re.compile(r"[A-Za-z0-9_./:,@%+-]*", re.ASCII)


def read_value(path: Path, name: str) -> ScriptValue | None:
    """What the script at *path* sets *name* to; ``None`` when it does not set it.

    Raises:
        MisuseError: The file cannot be read, or the way in which it sets *name* is not understood; says file and line.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise MisuseError(
            f"{path}: cannot be read: {error.strerror}", remedy="check the path and its permissions"
        ) from error
    return ShellScript(source, name, path).value()


def edit_value(source: bytes, name: str, value: str | None, *, path: Path | None = None) -> bytes:
    """The script *source* with *name* set to *value*, or not set at all for ``None``; every other byte stays.

    Args:
        path: Where the script stands; named in errors, and its folder is where files that it sources are looked for.

    Raises:
        MisuseError: The way in which the script sets *name* is not understood, or *value* cannot be written there.
    """
    script = ShellScript(source, name, path)
    before = script.value()
    if value is None:
        edited = _without(script) if before else source
    elif before:
        edited = _replaced(script, value)
    else:
        edited = _inserted(script, value)
    after = ShellScript(edited, name, path).value()
    if (after.value if after else None) != value:
        raise script.refusal(
            0, f"would set {name} to {after.value if after else None!r} after the change, not to {value!r}"
        )
    check_syntax(source, edited, script.refusal)
    return edited


def _replaced(script: ShellScript, value: str) -> bytes:
    site = script.site()
    assert site is not None
    in_default = script.source[site.stop : site.stop + 1] == b"}"
    if in_default and not _BARE_DEFAULT.fullmatch(value):
        raise script.refusal(
            site.start, f"holds the default of {script.name} in braces, where {value!r} cannot be written safely"
        )
    word = value.encode() if in_default else quoted(value, quoting(script.source[site.start : site.stop]))
    return script.source[: site.start] + word + script.source[site.stop :]


def _without(script: ShellScript) -> bytes:
    site = script.site()
    assert site is not None
    node, parent = site.node, site.node.parent
    assert parent is not None
    if site.form in ("prefix", "env"):
        after = next((child for child in parent.children if child.start_byte >= node.end_byte), None)
        if after is None or after.type in ("comment", ";", "&"):
            raise script.refusal(site.start, f"has nothing after {script.name} on that command")
        return script.source[: node.start_byte] + script.source[after.start_byte :]
    if site.form == "default":
        return _without_statement(script, next(up for up in nodes_above(node) if up.type == "command"))
    if parent.type == "declaration_command":
        others = [child for child in parent.named_children if child.type in ("variable_assignment", "variable_name")]
        if len(others) == 1:
            return _without_statement(script, parent)
    elif parent.type != "variable_assignments":
        return _without_statement(script, node)
    before = re.search(rb"(?:[ \t]|\\\r?\n)+$", script.source[: node.start_byte])
    if before and parent.type == "declaration_command":
        return script.source[: before.start()] + script.source[node.end_byte :]
    after_blanks = re.compile(rb"[ \t]*").match(script.source, node.end_byte)
    assert after_blanks is not None
    return script.source[: node.start_byte] + script.source[after_blanks.end() :]


def _without_statement(script: ShellScript, statement: tree_sitter.Node) -> bytes:
    """Take out a whole statement: its line when it is alone there, else it and its separator."""
    source, start, stop = script.source, statement.start_byte, statement.end_byte
    if statement.parent is None or statement.parent.type != "program":
        raise script.refusal(
            start, f"sets {script.name} in a list of commands, from which it cannot be taken out safely"
        )
    line_start = source.rfind(b"\n", 0, start) + 1
    line_end = line_stop(source, stop)
    before, after = source[line_start:start], source[stop:line_end]
    if not before.strip() and not after.strip():
        return source[:line_start] + source[line_end:]
    separator = re.match(rb"[ \t]*;[ \t]*", after)
    if separator:
        return source[:start] + source[stop + separator.end() :]
    leading = re.search(rb"[ \t]*;[ \t]*$", before)
    if leading:
        return source[: line_start + leading.start()] + source[stop:]
    return source[:start] + source[stop + len(after) - len(after.lstrip(b" \t")) :]


def _inserted(script: ShellScript, value: str) -> bytes:
    """Add one ``export N=V`` line after the last export line, else after the head of the script."""
    source = script.source
    if b"\r\n" in source:
        raise script.refusal(0, "ends its lines with CR LF, and bash would make the CR part of the value")
    indent, style, at = b"", "", _head_stop(script)
    for node in script.root.children:
        line_start = source.rfind(b"\n", 0, node.start_byte) + 1
        rest = source[node.end_byte : line_stop(source, node.end_byte)].strip()
        before = source[line_start : node.start_byte]
        if node.type == "declaration_command" and script.text(node).startswith(b"export") and not before.strip():
            if rest and not rest.startswith(b"#"):
                continue
            indent, at = before, line_stop(source, node.end_byte)
            words = [child for child in node.named_children if child.type == "variable_assignment"]
            style = quoting(script.text(words[0]).partition(b"=")[2]) if words else style
    line = indent + b"export " + script.name.encode() + b"=" + quoted(value, style) + b"\n"
    if at and source[at - 1 : at] != b"\n":
        line = b"\n" + line[:-1]
    return source[:at] + line + source[at:]


def _head_stop(script: ShellScript) -> int:
    """Where the shebang, the opening comment and the ``set`` lines end."""
    stop = 0
    for node in script.root.children:
        if node.type == "comment" or (node.type == "command" and script.text(node).split()[0] in (b"set", b"shopt")):
            if b"\n\n" in script.source[stop : node.start_byte] and node.type == "comment":
                break
            stop = line_stop(script.source, node.end_byte)
        elif node.type != "\n":
            break
    return stop


def check_syntax(before: bytes, after: bytes, refusal: Callable[[int, str], MisuseError]) -> None:
    """Let bash itself parse the result, where there is a bash; a script that was broken before may stay so.

    Raises:
        MisuseError: bash no longer understands it.
    """
    bash = shutil.which("bash")
    if bash is None:
        return
    check = subprocess.run([bash, "-n"], input=after, capture_output=True, timeout=10, check=False)
    if (
        check.returncode
        and not subprocess.run([bash, "-n"], input=before, capture_output=True, timeout=10, check=False).returncode
    ):
        said = check.stderr.decode(errors="replace").strip().splitlines()
        raise refusal(0, f"would no longer be understood by bash: {said[0] if said else 'bash -n failed'}")
