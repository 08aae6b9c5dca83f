"""Random start scripts, run under bash: only the value's bytes change and bash sees it, or the script is refused."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vindicate.errors import MisuseError
from vindicate.operate.script import edit_value, read_value

BASH = shutil.which("bash")
SETS = [
    "export K=1", "K=1", "export K", "export K='1 2'  # c", "declare -x K=1", "declare K=1", "declare -xi K=010", "declare -n K=J", "export J=2 K=1",
    "J=K", 'X="K=9"', "declare -n J=K", "readonly K=1", "unset K", "export -n K", ": ${K:=1}", "export K=${K:-1}", "K=1 true", "K=1 run", "env K=1 run",
    "echo env K=1 run", "env -i K=1 run", "env K=1 env -i run", "K=1 export K", "K+=1", "K=(1)", "let K=5", "((K=5))", "read K <<< 7", "printf -v K 7",
    'echo "K=$K"', 'echo "K=9" > e.sh', "[[ -v K ]]", "export K=1 &", "(export K=1)", "{ export K=1; }", "false && export K=1", "true || export K=1",
    "true && export K=1", "export K=1 || true", "if false; then export K=1; fi", "for K in 3; do :; done", "case a in a) K=1;; esac", "f() { K=1; }",
    "cat <<EOF\nK=1\nEOF", "export K=1\r", "export K=1 > o", "A=1 K=1", "export K={1,2}", "exec {K}> o", "exec env K=1 run", "K=1 exec run", "nohup env K=1 run",
    "export 'K'=4", 'export "K=4"', "export K=1 K=2", "alias K=1", "time export K=1", "! export K=1", "trap 'K=9' EXIT", "K=1 sudo run", "export K=1; run", "export K=1#x",
]  # fmt: skip
OTHER = [
    "run", "exec run", "run &", "f", "g", "f() { run; }", 'g() { x=K; declare -gx "$x=8"; }', 'eval "$Y"', "Y='K=6'", "N=K", 'export "$N=3"', "unset $N", "read $N <<< 9",
    "source ./e.sh", ". ./bad.sh", 'source "$PWD/bad.sh"', "source $(dirname $0)/good.sh", "set -a", "set +a", "exit 0", "true", "cd .", "env -i PATH=$PATH run", "env -u K run",
    "exec -c ./run", "export() { :; }", "shopt -s expand_aliases\nalias export=true", "set -euo pipefail", "# K=5", "if true; then run; fi", "(exec run)", "echo $K", "caf\xe9=1", "wait",
    "while read l; do :; done < good.sh", "enable -n export", "true # it's", "A=1 B=2",
]  # fmt: skip
PLAIN = ["export K=1", "K=1\nexport K", "set -a\nK=1\nset +a", ": ${K:=1}\nexport K", "export K=${K:-1}", "K=1 exec run", "exec env A=1 K=1 run", "cd . && export K=1 && run"]  # fmt: skip
TAME = ["true", "cd .", "# K=5", "set -euo pipefail", "echo $K", "source $(dirname $0)/good.sh", "A=1 B=2", "f() { run; }", "f", "run", 'echo "K=$K"', "export J=2"]  # fmt: skip
ANY = st.sampled_from(SETS) | st.sampled_from(OTHER)
LINE = st.sampled_from(PLAIN) | st.sampled_from(TAME) | st.sampled_from(TAME) | ANY
LINES = st.lists(st.tuples(LINE, st.sampled_from(["\n", "\n", "\n", "; ", " && ", "\r\n"])), min_size=1, max_size=5)


def seen(source: bytes, folder: Path) -> set[bytes | None]:
    """What the last `run` that the script starts, its service, finds in K; empty when it starts none, or breaks off before."""
    (folder / "serve.sh").write_bytes(source)
    (folder / "seen").unlink(missing_ok=True)
    done = subprocess.run(
        [BASH, "serve.sh"], cwd=folder, env={"PATH": f"{folder}:/usr/bin:/bin"}, timeout=10, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )  # fmt: skip
    text = (folder / "seen").read_bytes() if (folder / "seen").exists() and done.returncode == 0 else b""
    return {None if line == b"-" else line[1:] for line in text.splitlines()[-1:]}


@pytest.mark.skipif(BASH is None, reason="needs bash")
@settings(max_examples=150, deadline=None)
@given(lines=LINES, ends=st.booleans())
def test_whatever_the_script_only_the_value_changes_and_bash_sees_it(lines, ends):
    source = "".join(line + joint for line, joint in lines).encode("latin-1") + (b"exec run\n" if ends else b"run")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "run").write_text(
            f'#!/bin/bash\nif [ -v K ]; then printf "=%s\\n" "$K"; else echo -; fi >> {folder}/seen\n'
        )
        (folder / "run").chmod(0o755)
        (folder / "good.sh").write_text("A=1\n")
        (folder / "bad.sh").write_text("export K=8\n")
        (folder / "serve.sh").write_bytes(source)
        try:
            before = read_value(folder / "serve.sh", "K")
            edited = edit_value(source, "K", "512", path=folder / "serve.sh")
        except MisuseError:
            return
        assert seen(source, folder) <= {None if before is None else before.value.encode()}
        assert seen(edited, folder) <= {b"512"}
        if before is not None:
            tail = len(source) - before.stop
            assert (edited[: before.start], edited[len(edited) - tail :]) == (
                source[: before.start],
                source[before.stop :],
            )
