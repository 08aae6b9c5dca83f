"""Start scripts in many hands: changed in the value's bytes only, or refused with the line; bash itself is the judge."""

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vindicate.errors import MisuseError
from vindicate.operate.script import edit_value, read_value

BASH = shutil.which("bash")

# name: (script, with K=512, without K); the value before is 256. `run` stands for the engine's command.
PLAIN = {
    "export": ("#!/bin/bash\nexport K=256\nrun\n", "#!/bin/bash\nexport K=512\nrun\n", "#!/bin/bash\nrun\n"),
    "double quotes": ('export K="256"\nrun\n', 'export K="512"\nrun\n', "run\n"),
    "single quotes": ("export K='256'\nrun\n", "export K='512'\nrun\n", "run\n"),
    "half quoted": ("export K=2'5'\"6\"\nrun\n", "export K=512\nrun\n", "run\n"),
    "comment behind": ("export K=256  # was 512\nrun\n", "export K=512  # was 512\nrun\n", "# was 512\nrun\n"),
    "tabs": ("\texport\tK=256\t# x\nrun\n", "\texport\tK=512\t# x\nrun\n", "\t# x\nrun\n"),
    "no final newline": ("export K=256\nrun", "export K=512\nrun", "run"),
    "one of several": ("export A=1 K=256 B=2\nrun\n", "export A=1 K=512 B=2\nrun\n", "export A=1 B=2\nrun\n"),
    "exported later": ("K=256\nexport K\nrun\n", "K=512\nexport K\nrun\n", "export K\nrun\n"),
    "exported before": ("export K\nK=256\nrun\n", "export K\nK=512\nrun\n", "export K\nrun\n"),
    "on one line": ("K=256; export K; run\n", "K=512; export K; run\n", "export K; run\n"),
    "second on the line": ("A=1; export K=256; run\n", "A=1; export K=512; run\n", "A=1; run\n"),
    "last on the line": ("A=1; export K=256\nrun\n", "A=1; export K=512\nrun\n", "A=1\nrun\n"),
    "declare": ("declare -x K=256\nrun\n", "declare -x K=512\nrun\n", "run\n"),
    "set -a": ("set -a\nK=256\nset +a\nrun\n", "set -a\nK=512\nset +a\nrun\n", "set -a\nset +a\nrun\n"),
    "prefix": ("K=256 run --x 1\n", "K=512 run --x 1\n", "run --x 1\n"),
    "prefix over lines": (
        "A=1 \\\n  K=256 \\\n  B='x' \\\n  run --x \\\n  --y\n",
        "A=1 \\\n  K=512 \\\n  B='x' \\\n  run --x \\\n  --y\n",
        "A=1 \\\n  B='x' \\\n  run --x \\\n  --y\n",
    ),
    "prefix in the background": (
        "K=256 run > log 2>&1 &\nwait\n",
        "K=512 run > log 2>&1 &\nwait\n",
        "run > log 2>&1 &\nwait\n",
    ),
    "prefix into a pipe": ("K=256 run 2>&1 | cat\n", "K=512 run 2>&1 | cat\n", "run 2>&1 | cat\n"),
    "prefix after &&": ("cd . && K=256 run\n", "cd . && K=512 run\n", "cd . && run\n"),
    "env": ("env A=1 K=256 run\n", "env A=1 K=512 run\n", "env A=1 run\n"),
    "exec env": (
        "exec /usr/bin/env -u X K=256 run\n",
        "exec /usr/bin/env -u X K=512 run\n",
        "exec /usr/bin/env -u X run\n",
    ),
    "own default": ('export K="${K:-256}"\nrun\n', 'export K="${K:-512}"\nrun\n', "run\n"),
    "own default, bare": ("export K=${K-256}\nrun\n", "export K=${K-512}\nrun\n", "run\n"),
    "assigning default": (': "${K:=256}"\nexport K\nrun\n', ': "${K:=512}"\nexport K\nrun\n', "export K\nrun\n"),
    "used elsewhere": (
        'export K=256\necho "K is $K" # K=1\nrun --k "${K}"\n',
        'export K=512\necho "K is $K" # K=1\nrun --k "${K}"\n',
        'echo "K is $K" # K=1\nrun --k "${K}"\n',
    ),
    "like names": ("export KK=1 XK=2 K=256 K_=3\nrun\n", "export KK=1 XK=2 K=512 K_=3\nrun\n", None),
    "carriage returns elsewhere": ("export K=256 # x\r\nrun\n", "export K=512 # x\r\nrun\n", None),
    "not UTF-8": (b"# caf\xe9\nexport K=256\nrun\n", b"# caf\xe9\nexport K=512\nrun\n", b"# caf\xe9\nrun\n"),
    "behind what may set it too": (
        'eval "$(conda shell.bash hook)"\nsource "$WHERE/env.sh"\nexport K=256\nrun\n',
        'eval "$(conda shell.bash hook)"\nsource "$WHERE/env.sh"\nexport K=512\nrun\n',
        None,
    ),
    "called behind": (
        "main() {\n  exec run\n}\nexport K=256\nmain\n",
        "main() {\n  exec run\n}\nexport K=512\nmain\n",
        None,
    ),
    "told and tested": (
        'export K=256\n[[ -v K ]] && echo "K=$K" >&2\nrun\n',
        'export K=512\n[[ -v K ]] && echo "K=$K" >&2\nrun\n',
        None,
    ),
    "list with &&": ("cd . && export K=256 && run\n", "cd . && export K=512 && run\n", MisuseError),
}

REFUSED = {
    "set twice": ("export K=1\nexport K=2\n", 2),
    "in a function": ("f() {\n  export K=1\n}\nf\n", 2),
    "local": ("f() {\n  local K=1\n}\n", 2),
    "in an if": ("if true; then\n  export K=1\nfi\n", 2),
    "in a loop": ("for i in 1 2; do\n  export K=$i\ndone\n", 2),
    "as the loop's variable": ("for K in 1 2; do\n  :\ndone\n", 1),
    "in a case": ("case x in\n  x) export K=1;;\nesac\n", 2),
    "in a subshell": ("(\nexport K=1\n)\n", 2),
    "after ||": ("true || export K=1\n", 1),
    "in a here-document": ("cat <<EOF\nK=1\nEOF\n", 2),
    "in a quoted here-document": ("bash <<'EOF'\nexport K=1\nEOF\n", 2),
    "by a command": ("export K=$(nproc)\n", 1),
    "by backquotes": ("export K=`nproc`\n", 1),
    "from another variable": ('X=1\nexport K="$X"\n', 2),
    "array": ("K=(1 2)\nexport K\n", 1),
    "array element": ("K[0]=1\nexport K\n", 1),
    "added to": ("K=1\nK+=2\nexport K\n", 2),
    "never exported": ("K=1\nrun\n", 1),
    "unset": ("export K=1\nunset K\n", 2),
    "unexported": ("export K=1\nexport -n K\n", 2),
    "read": ("read -r K < file\nexport K\n", 1),
    "printf -v": ("printf -v K %s 1\nexport K\n", 1),
    "eval": ('eval "export K=1"\n', 1),
    "in bash -c": ('bash -c "K=1 run"\n', 1),
    "in tmux": ("tmux new -d 'export K=1; run'\n", 1),
    "for a container": ("docker run -e K=1 image\n", 1),
    "quoted whole": ('export "K=1"\n', 1),
    "arithmetic": ("((K = 1))\nexport K\n", 1),
    "carriage return": ("export K=1\r\nrun\r\n", 1),
    "in a pipeline": ("export K=1 | cat\n", 1),
    "tilde": ("export K=~/x\n", 1),
    "ANSI C quotes": ("export K=$'1\\n'\n", 1),
    "in a command substitution": ("x=$(K=1 run)\n", 1),
    "only sometimes": ("test -f x && export K=1\nrun\n", 1),
    "in the background": ("export K=1 &\nrun\n", 1),
    "with another attribute": ("declare -xi K=010\nrun\n", 1),
    "behind exec": ("exec run\nexport K=1\n", 2),
    "behind the last program": ("run\nexport K=1\nwait\n", 2),
    "behind a program in the background": ("run &\nexport K=1\nother\n", 2),
    "for true": ("K=1 true; export K\nrun\n", 1),
    "for an earlier program": ("K=1 warm-up\nrun\n", 2),
    "named by reference": ("export K=1\ndeclare -n J=K\nJ=2\nrun\n", 2),
    "set by a computed name": ('export K=1\nexport "$NAME=2"\nrun\n', 2),
    "set by a computed text": ('export K=1\neval "$MORE"\nrun\n', 2),
    "set by a called function": ('f() { eval "$1"; }\nexport K=1\nf x\nrun\n', 3),
    "sourced from anywhere": ('export K=1\nsource "$WHERE/env.sh"\nrun\n', 2),
    "taken away by env": ("export K=1\nexec env -i run\n", 2),
    "taken away by sudo": ("export K=1\nsudo run\n", 2),
    "export redefined": ("export() { :; }\nexport K=1\nrun\n", 1),
    "a NUL": ("export K=1\0\nrun\n", 1),
}


def as_bytes(text):
    return text if isinstance(text, bytes) else text.encode()


def value_in_bash(source: bytes, folder) -> str | None:
    """What the program `run`, which the script starts, finds in its environment."""
    program = folder / "run"
    program.write_text(f"#!/bin/sh\nexec env -0 > {folder}/seen\n")
    program.chmod(0o755)
    (folder / "seen").unlink(missing_ok=True)
    (folder / "serve.sh").write_bytes(source)
    subprocess.run(
        [BASH, "serve.sh"], cwd=folder, env={"PATH": f"{folder}:/usr/bin:/bin"}, timeout=10, check=False, stdout=subprocess.DEVNULL
    )  # fmt: skip
    pairs = dict(item.split(b"=", 1) for item in (folder / "seen").read_bytes().split(b"\0") if item)
    found = pairs.get(b"K")
    return None if found is None else found.decode()


@pytest.mark.parametrize("name", PLAIN)
def test_changes_only_the_bytes_of_the_value(name, tmp_path):
    before, changed, removed = PLAIN[name]
    before = as_bytes(before)
    path = tmp_path / "serve.sh"
    path.write_bytes(before)
    found = read_value(path, "K")
    assert found.value == "256"
    assert before[: found.start].count(b"\n") + 1 == found.line
    assert edit_value(before, "K", "512", path=path) == as_bytes(changed)
    assert edit_value(as_bytes(changed), "K", "256", path=path) == (
        before if name != "half quoted" else before.replace(b"2'5'\"6\"", b"256")
    )
    if removed is MisuseError:
        with pytest.raises(MisuseError, match="taken out"):
            edit_value(before, "K", None, path=path)
    elif removed is not None:
        assert edit_value(before, "K", None, path=path) == as_bytes(removed)


@pytest.mark.skipif(BASH is None, reason="needs bash")
@pytest.mark.parametrize("name", [name for name in PLAIN if name != "list with &&"])
def test_bash_agrees_with_the_change(name, tmp_path):
    before, _, removed = PLAIN[name]
    before = as_bytes(before)
    assert value_in_bash(before, tmp_path) == "256"
    assert value_in_bash(edit_value(before, "K", "512"), tmp_path) == "512"
    assert value_in_bash(edit_value(before, "K", ""), tmp_path) == ""
    if removed is not None:
        assert value_in_bash(edit_value(before, "K", None), tmp_path) is None


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_what_it_does_not_understand_and_names_the_line(name, tmp_path):
    source, line = REFUSED[name]
    path = tmp_path / "serve.sh"
    path.write_bytes(source.encode())
    with pytest.raises(MisuseError) as caught:
        edit_value(source.encode(), "K", "512", path=path)
    assert caught.value.problem.startswith(f"{path}:{line}: ")
    assert path.read_bytes() == source.encode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("#!/bin/bash\nset -e\nexport A=1\nexport B='x'\nrun\n", "#!/bin/bash\nset -e\nexport A=1\nexport B='x'\nexport K='7'\nrun\n"),
        ("#!/bin/bash\n# about\nset -euo pipefail\n\nrun\n", "#!/bin/bash\n# about\nset -euo pipefail\nexport K=7\n\nrun\n"),
        ("#!/bin/bash\nA=1 run\n", "#!/bin/bash\nexport K=7\nA=1 run\n"),
        ("run\n", "export K=7\nrun\n"),
        ("", "export K=7\n"),
        ("export A=1 # last", "export A=1 # last\nexport K=7"),
        ("if x; then\n  export B=1\nfi\nexport A=1\nrun\n", "if x; then\n  export B=1\nfi\nexport A=1\nexport K=7\nrun\n"),
        ("export A=1; run\n", "export K=7\nexport A=1; run\n"),
    ],
)  # fmt: skip
def test_an_absent_knob_is_one_new_line_and_comes_out_again(before, after):
    assert edit_value(before.encode(), "K", "7").decode() == after
    assert edit_value(after.encode(), "K", None).decode() == before or before.endswith("last")


def test_unset_and_empty_are_told_apart(tmp_path):
    path = tmp_path / "serve.sh"
    path.write_text("export A=1\n")
    assert read_value(path, "K") is None
    path.write_text("export A=1 K=\n")
    assert read_value(path, "K").value == ""
    assert edit_value(b"export K=\n", "K", "5") == b"export K=5\n"
    assert edit_value(b"K= run\n", "K", "5") == b"K=5 run\n"


def test_refuses_when_a_sourced_file_sets_it_too(tmp_path):
    path = tmp_path / "serve.sh"
    path.write_text("source ./env.sh\nexport K=1\n")
    (tmp_path / "env.sh").write_text("# K=3 in a comment\nexport A=1\n\nexport K=2\n")
    with pytest.raises(MisuseError) as caught:
        edit_value(path.read_bytes(), "K", "5", path=path)
    assert caught.value.problem.startswith(f"{tmp_path}/env.sh:4: ")
    (tmp_path / "env.sh").write_text("# K=3 in a comment\necho $K\n")
    assert edit_value(path.read_bytes(), "K", "5", path=path) == b"source ./env.sh\nexport K=5\n"


def test_a_value_that_braces_cannot_hold_is_refused():
    with pytest.raises(MisuseError, match="braces"):
        edit_value(b"export K=${K:-1}\n", "K", "a b}")
    with pytest.raises(MisuseError, match="NUL"):
        edit_value(b"export K=1\n", "K", "a\0b")


@pytest.mark.skipif(BASH is None, reason="needs bash")
@settings(max_examples=60, deadline=None)
@given(
    value=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
    | st.sampled_from(["$(touch x)", "`x`", "a'b", '"', "a\nb", "!!", "~", "a b", "\\", "$HOME", "'; rm -rf x; '", "a\r", "#c"]),
    form=st.sampled_from(['export K="1"\n', "export K=1\n", "export K='1' B=2\n", "export A=1\n", "K=1; export K\n"]),
)  # fmt: skip
def test_any_value_round_trips_through_bash_and_runs_nothing(value, form):
    script = edit_value(form.encode(), "K", value)
    done = subprocess.run(
        [BASH, "-c", script.decode() + 'printf %s "$K"'], capture_output=True, timeout=10, check=False, env={"LC_ALL": "C.UTF-8"}
    )  # fmt: skip
    assert done.stdout == value.encode()
    assert not done.stderr
