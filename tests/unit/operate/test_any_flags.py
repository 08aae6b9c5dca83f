"""Random start scripts, run under bash: what is said of a flag is what the program gets, and a change changes that alone, or there is a refusal."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from vindicate.errors import MisuseError
from vindicate.operate.script_flag import _FlagScript, edit_flag
from vindicate.wire.flags import find_flag

BASH = shutil.which("bash")
FLAG = "--max-n"
RUN = f"#!{sys.executable}\nimport json, pathlib, sys\npathlib.Path('seen').open('a').write(json.dumps(sys.argv[1:]) + '\\n')\n"
BEFORE = [
    "true", "set -e", "# --max-n 5", "echo --max-n 9", "A=(--max-n 4)", "A=(--a 1)", "A=(--a 1 # --max-n 9\n --b)", "A+=(--max-n=4)", "A+=(--b 2)", "declare -a A=(--c)",
    "if true; then A+=(--t 2); fi", "if false; then A+=(--max-n 2); fi", "if false; then A+=(7); fi", "false && A+=(--t)", "A[0]=x", "unset A", "mapfile -t A <<< --max-n",
    "X='--max-n 8'", "X=--x", "N=3", "set -- --max-n 6", "set -- a", "f() { run --max-n 1; }", "f", "run --max-n 2", "run &", "run", "alias run=true", "eval 'run --max-n 3'",
    "cat <<E\nrun --max-n 3\nE", "exec run --z", "exit 0", "for i in 1 2; do A+=(--i); done", "export M=1", "A=()", "readarray -t A < /dev/null", "cd .", "B=(--q '--max-n 2')",
]  # fmt: skip
LEAD = ["", "exec ", "nohup ", "env X=1 ", "X=1 ", "exec env -u Y ", "time ", "command ", "cd . && ", "true; ", "false || ", "bash -c ", "eval ", "setsid ", "nice -n 1 "]  # fmt: skip
WORDS = [
    "--max-n 64", "--max-n=64", "--max_n 64", '"--max-n=64"', "--max-n '6 4'", "--max-n", "--max-n -1", "--max-n $N", '--max-n "$N"', "--max-n=$N", "--max 3", "--m", "--maxx-n 3",
    '"${A[@]}"', "${A[@]}", '"${A[*]}"', '"$@"', "$@", "$X", '"$X"', "${X}", "--x $X", '--x "$X"', "--x=$X", "${N:+--y}", "${N:+--max-n 3}", "$(echo --max-n 5)", "--y $(echo 5)",
    "model", "--b", "--c 1", "--d 1 2", "--", "\\\n  --e 5", "\\\n  --max-n 7", "*", "{a,b}", "~", "'--max-n'", "--ma'x-n' 3", "-x", "> o", "2>&1", "<<< --max-n", '"--max-n"',
]  # fmt: skip
TAME = ["--a 1", "--b", "\\\n  --c 'x y'", "model", '"${A[@]}"', '"$@"', "--p $N", '"$N"', "--u=http://$N/"]
LINES = st.lists(st.sampled_from(BEFORE), max_size=3)
COMMAND = st.lists(st.sampled_from(TAME) | st.sampled_from(TAME) | st.sampled_from(WORDS), max_size=5)
ENDS = st.sampled_from(
    [
        "\n",
        "",
        " > o 2>&1\n",
        " &\nwait\n",
        " | cat\n",
        "  # --max-n 1\n",
        " || exit 1\n",
        "; true\n",
        " \\\n\n",
        "\r\n",
    ]
)


def given_by_bash(source: bytes, folder: Path) -> list[str] | None:
    """The arguments that the last `run` which the script starts gets; ``None`` when it starts none, or breaks off before."""
    (folder / "serve.sh").write_bytes(source)
    (folder / "seen").unlink(missing_ok=True)
    done = subprocess.run(
        [BASH, "serve.sh"], cwd=folder, env={"PATH": f"{folder}:/usr/bin:/bin", "HOME": "/h"}, timeout=10, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )  # fmt: skip
    lines = (folder / "seen").read_text().splitlines() if (folder / "seen").exists() and done.returncode == 0 else []
    return json.loads(lines[-1]) if lines else None


def said(source: bytes) -> str | None:
    found = _FlagScript(source, FLAG, None).value()
    return found.value if found else None


def held(argv: list[str]) -> list[str | None]:
    """What a program could take the flag for, by argparse's rules; one that takes no value leaves the word behind it alone."""
    return [one.value for one in find_flag(argv, FLAG)] or [None]


@pytest.mark.skipif(BASH is None, reason="needs bash")
@settings(max_examples=150, deadline=None)
@given(
    before=LINES, lead=st.sampled_from(LEAD), words=COMMAND, ends=ENDS, value=st.sampled_from(["7", "a b", "", None])
)
def test_whatever_the_script_what_is_said_is_what_the_program_gets(before, lead, words, ends, value):
    source = ("\n".join([*before, lead + " ".join(["run", *words])]) + ends).encode()
    try:
        now = said(source)
    except MisuseError:
        event("refused")
        return
    event("read")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "run").write_text(RUN)
        (folder / "run").chmod(0o755)
        first = given_by_bash(source, folder)
        if first is None:
            return  # it does not come to its program
        assert held(first) == [now], source.decode()
        try:
            changed = edit_flag(source, FLAG, value)
        except MisuseError:
            return
        event("changed")
        second = given_by_bash(changed, folder)
        assert second is not None, changed.decode()
        assert held(second) == [value], changed.decode()
        assert rest(second) == rest(first), changed.decode()


def rest(argv: list[str]) -> list[str]:
    """The words beside the flag and its value."""
    found = find_flag(argv, FLAG)
    if not found:
        return argv
    width = 1 if found[0].joined or not found[0].n_values else 2
    return argv[: found[0].at] + argv[found[0].at + width :]
