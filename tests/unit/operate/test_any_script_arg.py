"""Random start scripts, run under bash: what the reader says of a flag is what the program's argv holds, or the script is refused."""

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vindicate.errors import MisuseError
from vindicate.operate.script_arg import edit_arg, read_arg

BASH = shutil.which("bash")
FLAG = ["--max-cap 7", "--max-cap=7", "--max_cap 7", "--max_cap=7", '--max-cap "7"', "--max-cap='7 8'", '"--max-cap=7"', "'--max-cap' 7", "--max-cap", "--max-cap=",
    "--max-cap $X", '--max-cap "$X"', "--max-cap=$X", "--max-cap ${X:-7}", "--max-cap $(echo 7)", "--max-cap -7", "--max-cap -x", '--max-cap ""', "--max-cap 7 8", "--max-c 7",
    "--max-cap 7 --max-cap 8", "--max'-cap' 7", "--max-\\\ncap 7", "--max-cap \\\n  7", "--max-cap {7,8}", "--{max-cap,x} 7", "--max-cap $'7'", "-max-cap 7", "--$Y=7", "--max$Y 7", "-- --max-cap 7",
    "--max-cap 7;", "--max-cap\t7", "--max-cap 7\u00a08", "--max-cap 7\r", "--max-cap ~", "--max-cap a\\ b", "--max-cap '7'8", "# --max-cap 7", "--max-cap 7 #9", "--max-cap 7#9", "--max-cap *", "--max-cap !", "--no-max-cap"]  # fmt: skip
ARG = ["--a 1", "--a=1", '--b "x y"', "m", "--a $X", '--a "$X"', "$X", '"$X"', "$M", "${M}", "$M/x", "--e $EXTRA", "$EXTRA", '"$@"', "$1", '"${A[@]}"', "${A[@]}", '"${A[*]}"', "${B[@]}", '"${B[@]}"', "--c", "--d -1", "> o", "2>&1", "< /dev/null",
    "<<< 1", "*.sh", "{1,2}", "\\\n", "\\\n  --f 2 \\\n ", "''", "--j '{\"q\": 1}'", "--a `echo 1`", "--a $((1+1))", "`echo --max-cap 9`", "-", "--max 3", "--m", "<(true)", "~", "$'x'", '$"x"', "&>o", ">o --g 3"]  # fmt: skip
LINES = ["A=(--a 1)", "A=(--a 1 --max-cap 7)", "A=(--max-cap=7)", "A=(--max-cap)", "A=(\n  --a 1 # x\n  --max-cap 7\n)", "A=(--max-cap 7 # x\n)", "A+=(--b 2)", "A+=(--max-cap 7)", "true && A+=(--b 2)", "false && A+=(--b 2)", "if false; then A+=(--c); fi", "A+=(3)", "false && A+=(--max-cap 7)", "for i in 1 2; do A+=(--c); done", "A[1]=9", "unset A", "A=()", "declare -a A=(--max-cap 7)", "declare -A A=(--max-cap 7)",
    'A=(--a "$X")', "A=(--a $X)", "read -a A <<< '--max-cap 9'", 'B=("${A[@]}")', "X=3", "X=--max-cap=4", "X='3 4'", "M=/m", "M=${M:-/m}", "M=$X", "EXTRA='--a 1'", "EXTRA='--max-cap 9'", "Y=cap", "Y=max-cap", "run", "run --a 1", "run --max-cap 1", "run &", "f",
    "f() { run --max-cap 1; }", "run() { command run --max-cap 2; }", 'run() { command run --max-cap 2 "$@"; }', 'eval "run --max-cap 3"', 'eval "$X"', "source ./e.sh", ". ./bad.sh", "set -- --max-cap 5", "shift", "true", "cd .", "# --max-cap 5", "echo --max-cap 5",
    "cat <<EOF\nrun --max-cap 5\nEOF", "bash <<EOF\nrun --max-cap 5\nEOF", "bash -c 'run --max-cap 5'", "if true; then run --max-cap 5; fi", "exit 0", "set -f", "IFS=a", "alias run='run --max-cap 5'", "shopt -s expand_aliases\nalias run='run --max-cap 5'", "set -euo pipefail",
    "wait", "(run --max-cap 5)", "x=$(run --max-cap 5)", "while read l; do :; done < e.sh", "( A=(--max-cap 7) )", "A=(--max-cap 7) true", "false && A=(--max-cap 7)", "true | A=(--max-cap 7)", "declare -n R=A\nR=(--max-cap 7)", 'declare "$N=3"', "local A=(--max-cap 7)", "A=(--max-cap 7) &"]  # fmt: skip
START = ["run", "exec run", "nohup run", "env K=1 run", "K=1 run", "time run", "exec env -u K run", "command run", "./run", '"./run"', "nice -n 5 run", "timeout 9 run", "stdbuf -oL run", "setsid -w run", "true && run", "cd . && exec run", "false || run", "true || run", "! run", "{ run", "bash ./run", "bash -c run", "f", "exec -a x run",
    "$R", '"$R"', "sh run", "env -S run", "sudo run", "xargs run", "true | run", "run --a 1 | run", "coproc run", "exec -c ./run", "eval run"]  # fmt: skip
TAME = ["--a 1", '--b "x y"', "m", "--c", "--a=1", "--a $X", '"$X"', "\\\n  --f 2 \\\n "]
GOOD = FLAG[:10]
ENDS = [
    "",
    "",
    "\n",
    " &\nwait\n",
    " > o 2>&1\n",
    " 2>&1 | cat\n",
    "; wait\n",
    " || true\n",
    " && true\n",
    "\r\n",
    " # x\n",
    " | tee o &\nwait\n",
    " & run\n",
    " \\\n\n",
    "; }\n",
    "\nrun\n",
    "\nexit 0\n",
]
WORD = (
    st.sampled_from(TAME) | st.sampled_from(TAME) | st.sampled_from(ARG) | st.sampled_from(GOOD) | st.sampled_from(FLAG)
)
BEFORE = st.lists(
    st.tuples(st.sampled_from(LINES[:12] + LINES[23:33]) | st.sampled_from(LINES), st.sampled_from(["\n", "\n", "\n", "; ", " && ", "\r\n"])), max_size=3
)  # fmt: skip
JUDGE = argparse.ArgumentParser(add_help=False)
JUDGE.add_argument("--max-cap", "--max_cap", nargs="?", const="", action="append")


@st.composite
def scripts(draw):
    """A script, mostly one whose service is started in the open."""
    before = "".join(line + joint for line, joint in draw(BEFORE))
    start = draw(st.sampled_from(START[:10]) | st.sampled_from(START[:10]) | st.sampled_from(START))
    words = draw(st.lists(WORD, max_size=4))
    blank = draw(st.sampled_from([" ", " ", " ", " \\\n  ", "\t"]))
    end = draw(st.sampled_from(ENDS[:6]) | st.sampled_from(ENDS))
    return (before + blank.join([start, *words]) + end).encode()


def seen(source: bytes, folder: Path) -> set[str | None]:
    """What argparse takes from the argv of the last `run`, the service; empty when none was started, or it breaks off before."""
    (folder / "serve.sh").write_bytes(source)
    (folder / "seen").unlink(missing_ok=True)
    done = subprocess.run(
        [BASH, "serve.sh"], cwd=folder, env={"PATH": f"{folder}:/usr/bin:/bin", "R": "run"}, timeout=10, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )  # fmt: skip
    if not (folder / "seen").exists() or done.returncode:
        return set()
    argv = (folder / "seen").read_bytes().split(b"\1\n")[-2].decode(errors="surrogateescape").split("\0")[1:-1]
    values = JUDGE.parse_known_args(argv)[0].max_cap or [None]
    return set(values) if len(values) == 1 else {"more than one", *values}


def holds_for(source: bytes, name: str) -> bool:
    """Whether the reader took the script, and then was right about it and about what it made of it."""
    folder = Path(name)
    (folder / "run").write_text(
        f'#!/bin/sh\nprintf "%s\\0" run "$@" >> {folder}/seen; printf "\\1\\n" >> {folder}/seen\n'
    )
    (folder / "run").chmod(0o755)
    for other in ("f", "m"):  # every word that may stand for a program is one
        shutil.copy(folder / "run", folder / other)
    (folder / "sudo").write_text('#!/bin/sh\nexec "$@"\n')
    (folder / "sudo").chmod(0o755)
    (folder / "e.sh").write_text("Z=1\n")
    (folder / "bad.sh").write_text("A=(--max-cap 8)\n")
    (folder / "serve.sh").write_bytes(source)
    try:
        before = read_arg(folder / "serve.sh", "max-cap")
    except MisuseError:
        return False
    assert seen(source, folder) <= {before.value if before else None}
    for value in ("512", "-x y", "", None):
        try:
            edited = edit_arg(source, "max-cap", value, path=folder / "serve.sh")
        except MisuseError:
            continue
        assert seen(edited, folder) <= {value}, edited
        assert value != (before.value if before else None) or edited == source
    return True


@pytest.mark.skipif(BASH is None, reason="needs bash")
@settings(max_examples=100, deadline=None)
@given(source=scripts())
def test_whatever_the_script_a_flag_is_read_as_the_program_gets_it(source):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        holds_for(source, name)
