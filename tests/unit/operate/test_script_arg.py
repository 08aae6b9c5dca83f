"""Start scripts in many hands and a flag of their service: changed in the value's bytes only, or refused with the line."""

import shutil
import subprocess

import pytest

from vindicate.errors import MisuseError
from vindicate.operate.script_arg import edit_arg, read_arg

BASH = shutil.which("bash")

# name: (script, with --max-cap 512, without the flag); it is 64 before. `run` stands for the engine's command.
PLAIN = {
    "one line": ("run --a 1 --max-cap 64 --b\n", "run --a 1 --max-cap 512 --b\n", "run --a 1 --b\n"),
    "SGLang": (
        "#!/bin/bash\nexec python -m sglang.launch_server --model-path /m --max-cap 64\n",
        "#!/bin/bash\nexec python -m sglang.launch_server --model-path /m --max-cap 512\n",
        "#!/bin/bash\nexec python -m sglang.launch_server --model-path /m\n",
    ),
    "vLLM": ("vllm serve /m --max-cap=64\n", "vllm serve /m --max-cap=512\n", "vllm serve /m\n"),
    "underscores": ("run --max_cap 64\n", "run --max_cap 512\n", "run\n"),
    "quoted": ("run --max-cap \"64\" --max-capx '1'\n", "run --max-cap \"512\" --max-capx '1'\n", "run --max-capx '1'\n"),
    "quoted whole": ("run '--max-cap=64'\n", "run '--max-cap=512'\n", "run\n"),
    "continued": (
        "run \\\n  --a 1 \\\n  --max-cap 64 \\\n  --b 2 > log 2>&1 &\nwait\n",
        "run \\\n  --a 1 \\\n  --max-cap 512 \\\n  --b 2 > log 2>&1 &\nwait\n",
        "run \\\n  --a 1 \\\n  --b 2 > log 2>&1 &\nwait\n",
    ),
    "continued, last": (
        "run \\\n\t--a 1 \\\n\t--max-cap=64\n",
        "run \\\n\t--a 1 \\\n\t--max-cap=512\n",
        "run \\\n\t--a 1\n",
    ),
    "continued, with others": (
        "run \\\n  --max-cap 64 --b 2 \\\n  --c\n",
        "run \\\n  --max-cap 512 --b 2 \\\n  --c\n",
        "run \\\n  --b 2 \\\n  --c\n",
    ),
    "value on the next line": ("run --max-cap \\\n  64 --b\n", "run --max-cap \\\n  512 --b\n", "run --b\n"),
    "array": (
        'ARGS=(\n  --a 1  # one\n  --max-cap 64\n  --b 2\n)\nexec run "${ARGS[@]}"\n',
        'ARGS=(\n  --a 1  # one\n  --max-cap 512\n  --b 2\n)\nexec run "${ARGS[@]}"\n',
        'ARGS=(\n  --a 1  # one\n  --b 2\n)\nexec run "${ARGS[@]}"\n',
    ),
    "array with a comment behind": (
        'ARGS=(\n  --a 1\n  --max-cap 64  # cap\n)\nrun "${ARGS[@]}"\n',
        'ARGS=(\n  --a 1\n  --max-cap 512  # cap\n)\nrun "${ARGS[@]}"\n',
        'ARGS=(\n  --a 1\n  # cap\n)\nrun "${ARGS[@]}"\n',
    ),
    "array on one line": (
        'declare -a A=(--max-cap 64 --b)\nrun m "${A[@]}" --c\n',
        'declare -a A=(--max-cap 512 --b)\nrun m "${A[@]}" --c\n',
        'declare -a A=(--b)\nrun m "${A[@]}" --c\n',
    ),
    "array that is added to": (
        'A=(--max-cap 64)\nif true; then\n  A+=(--b "$X")\nfi\nA+=(--c)\nrun "${A[@]}"\n',
        'A=(--max-cap 512)\nif true; then\n  A+=(--b "$X")\nfi\nA+=(--c)\nrun "${A[@]}"\n',
        'A=()\nif true; then\n  A+=(--b "$X")\nfi\nA+=(--c)\nrun "${A[@]}"\n',
    ),
    "added to an array": (
        'A=(--a 1)\nA+=(--max-cap 64)\nrun "${A[@]}"\n',
        'A=(--a 1)\nA+=(--max-cap 512)\nrun "${A[@]}"\n',
        'A=(--a 1)\nA+=()\nrun "${A[@]}"\n',
    ),
    "bare array": ("A=(--max-cap 64)\nrun ${A[@]}\n", "A=(--max-cap 512)\nrun ${A[@]}\n", "A=()\nrun ${A[@]}\n"),
    "wrapped": (
        "X=1 nohup numactl -N 0 -m 0 env K=1 run --max-cap 64 2>&1 | tee log\n",
        "X=1 nohup numactl -N 0 -m 0 env K=1 run --max-cap 512 2>&1 | tee log\n",
        "X=1 nohup numactl -N 0 -m 0 env K=1 run 2>&1 | tee log\n",
    ),
    "variables elsewhere": (
        'PORT=3\nM=${1:-/m}\nrun $M --port $PORT --x "$X" --max-cap 64 --d="$D"\n',
        'PORT=3\nM=${1:-/m}\nrun $M --port $PORT --x "$X" --max-cap 512 --d="$D"\n',
        'PORT=3\nM=${1:-/m}\nrun $M --port $PORT --x "$X" --d="$D"\n',
    ),
    "comments name it": ("# --max-cap 9\nrun --max-cap 64 # --max-cap\n", "# --max-cap 9\nrun --max-cap 512 # --max-cap\n", "# --max-cap 9\nrun # --max-cap\n"),
    "other programs before": (
        "set -e\nsource env.sh\npip list > /dev/null\ncd . && exec run --max-cap 64\n",
        "set -e\nsource env.sh\npip list > /dev/null\ncd . && exec run --max-cap 512\n",
        "set -e\nsource env.sh\npip list > /dev/null\ncd . && exec run\n",
    ),
    "no final newline": ("run --max-cap 64", "run --max-cap 512", "run"),
    "not UTF-8": (b"# caf\xe9\nrun --n 'caf\xe9' --max-cap 64\n", b"# caf\xe9\nrun --n 'caf\xe9' --max-cap 512\n", b"# caf\xe9\nrun --n 'caf\xe9'\n"),
    "carriage returns elsewhere": ("# x\r\nrun --max-cap 64\n", "# x\r\nrun --max-cap 512\n", "# x\r\nrun\n"),
}  # fmt: skip

# name: (script without the flag, with --max-cap 512)
ABSENT = {
    "one line": ("run --a 1 &\nwait\n", "run --a 1 --max-cap 512 &\nwait\n"),
    "with equals signs": ("run --a=1 --b=2 > log\n", "run --a=1 --b=2 --max-cap=512 > log\n"),
    "continued": ("run \\\n    --a 1 \\\n    --b 2\n", "run \\\n    --a 1 \\\n    --b 2 \\\n    --max-cap 512\n"),
    "continued with a tab": (
        "run \\\n\t--a 1 2>&1 | tee log\n",
        "run \\\n\t--a 1 \\\n\t--max-cap 512 2>&1 | tee log\n",
    ),
    "array": ('A=(\n  --a 1 # x\n)\nrun "${A[@]}"\n', 'A=(\n  --a 1 # x\n  --max-cap 512\n)\nrun "${A[@]}"\n'),
    "array on one line": ('A=(--a 1)\nrun "${A[@]}"\n', 'A=(--a 1 --max-cap 512)\nrun "${A[@]}"\n'),
    "array, then more": ('A=(--a 1)\nrun "${A[@]}" --b\n', 'A=(--a 1)\nrun "${A[@]}" --b --max-cap 512\n'),
    "array, added to sometimes": (
        'A=(--a)\ntrue && A+=(--b)\nrun "${A[@]}"\n',
        'A=(--a)\ntrue && A+=(--b)\nrun "${A[@]}" --max-cap 512\n',
    ),
    "array, added to": ('A=(--a)\nA+=(--b)\nrun "${A[@]}"\n', 'A=(--a)\nA+=(--b --max-cap 512)\nrun "${A[@]}"\n'),
    "empty array": ('A=()\nrun "${A[@]}"\n', 'A=()\nrun "${A[@]}" --max-cap 512\n'),
    "nothing": ("run", "run --max-cap 512"),
}

REFUSED = {
    "an expansion": ("X=1\nrun --max-cap $X\n", 2),
    "a quoted expansion": ('run --max-cap "$X"\n', 1),
    "a default": ("run --max-cap ${X:-64}\n", 1),
    "a command substitution": ("run --max-cap $(nproc)\n", 1),
    "an expansion behind =": ("run --max-cap=$X\n", 1),
    "twice": ("run --max-cap 1 \\\n  --max_cap=2\n", 2),
    "in an array and beside it": ('A=(--max-cap 1)\nrun "${A[@]}" --max-cap 2\n', 2),
    "shortened": ("run --max-c 64\n", 1),
    "several values": ("run --max-cap 1 2 4\n", 1),
    "elsewhere": ("echo --max-cap\nrun --max-cap 1\n", 1),
    "in a string": ("X='--max-cap 3'\nrun $X\n", 2),
    "in an earlier command": ("warm --max-cap 1\nrun\n", 1),
    "two services": ("run --max-cap 1 &\nother\n", 1),
    "the same twice, once as root": ("run --a 1\nsudo run --max-cap 1\n", 1),
    "the same twice": ("run serve --a 1\nrun serve --max-cap 1\n", 1),
    "in a function": ("f() {\n  run --max-cap 1\n}\nf\n", 4),
    "a function of that name": ('run() {\n  command run2 "$@"\n}\ntime run --max-cap 1\n', 4),
    "in an if": ("if true; then\n  run --max-cap 1\nfi\n", 2),
    "in a loop": ("while true; do\n  run --max-cap 1\ndone\n", 2),
    "after ||": ("a || run --max-cap 1\n", 1),
    "in a subshell": ("(run --max-cap 1)\n", 1),
    "in eval": ('eval "run --max-cap 1"\n', 1),
    "in bash -c": ('bash -c "run --max-cap 1"\n', 1),
    "in tmux": ("tmux new -d 'run --max-cap 1'\n", 1),
    "over ssh": ("ssh host run --max-cap 1\n", 1),
    "in a container": ("docker run image --max-cap 1\n", 1),
    "a here-document": ("bash <<EOF\nrun --max-cap 1\nEOF\n", 1),
    "a here-document behind": ("run --max-cap 1 <<EOF\nx\nEOF\n", 1),
    "what the script was called with": ('run --max-cap 1 "$@"\n', 1),
    "options in a variable": ("run --max-cap 1 $EXTRA_ARGS\n", 1),
    "an array from elsewhere": ('run --max-cap 1 "${EXTRA[@]}"\n', 1),
    "an array set twice": ('A=(--max-cap 1)\nA=(--b)\nrun "${A[@]}"\n', 2),
    "an array added to sometimes": ('A=(--b)\nif true; then\n  A+=(--max-cap 1)\nfi\nrun "${A[@]}"\n', 3),
    "an array added to by a declaration": ('A=(--max-cap 1)\ndeclare -a A+=(--b)\nrun "${A[@]}"\n', 2),
    "an array that is only added to": ('A+=(--max-cap 1)\nrun "${A[@]}"\n', 1),
    "a value that is added sometimes": ('A=(--max-cap)\ntrue && A+=(--b)\nrun "${A[@]}" 3\n', 2),
    "an array changed": ('A=(--max-cap 1)\nA[1]=2\nrun "${A[@]}"\n', 2),
    "an array read": ('A=(--max-cap 1)\nread -a A\nrun "${A[@]}"\n', 2),
    "an array set only sometimes": ('true && A=(--max-cap 1)\nrun "${A[@]}"\n', 1),
    "an array that a file may change": ('A=(--max-cap 1)\nsource "$X"\nrun "${A[@]}"\n', 2),
    "behind --": ("run -- --max-cap 1\n", 1),
    "carriage returns": ("run --max-cap 64\r\n", 1),
    "an alias": ("alias run='run --max-cap 2'\nrun\n", 1),
    "behind exit": ("exit 0\nrun --max-cap 1\n", 1),
    "another service beside it": ("run &\nother\nwait\n", 1),
    "a word that the grammar leaves out": ("run - 2>&1 | cat\n", 1),
    "a comment in a continued line": ("run \\\n  # --max-cap 7 \\\n  m &\nwait\n", 2),
    "no program": ("export A=1\n", 1),
    "behind a redirection": ("run > log --max-cap 1\n", 1),
    "broken over lines": ("run --max-\\\ncap 1\n", 1),
    "a NUL": ("run --max-cap 1\0\n", 1),
    "a flag that is computed": ("run --$X 1\n", 1),
}


def as_bytes(text):
    return text if isinstance(text, bytes) else text.encode()


def argv_in_bash(source: bytes, folder) -> list[str]:
    """What the program that the script starts gets; every program is the same one."""
    for name in ("run", "vllm", "python", "numactl"):
        if name == "numactl":
            (folder / name).write_text('#!/bin/sh\nshift 4; exec "$@"\n')
        else:
            (folder / name).write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {folder}/argv\n')
        (folder / name).chmod(0o755)
    (folder / "env.sh").write_text("A=1\n")
    (folder / "serve.sh").write_bytes(source)
    subprocess.run([BASH, "serve.sh"], cwd=folder, env={"PATH": f"{folder}:/usr/bin:/bin"}, timeout=10, check=False, capture_output=True)  # fmt: skip
    return (folder / "argv").read_text(errors="surrogateescape").splitlines()


@pytest.mark.parametrize("name", PLAIN)
def test_only_the_bytes_of_the_flags_value_change(name, tmp_path):
    before, after, without = map(as_bytes, PLAIN[name])
    (tmp_path / "serve.sh").write_bytes(before)
    for spelling in ("--max-cap", "max_cap", "max-cap"):
        found = read_arg(tmp_path / "serve.sh", spelling)
        assert found.value == "64"
        assert edit_arg(before, spelling, "512") == after
    assert edit_arg(before, "max-cap", "64") == before
    assert edit_arg(after, "max-cap", "64") == before
    assert edit_arg(before, "max-cap", None) == without


@pytest.mark.skipif(BASH is None, reason="needs bash")
@pytest.mark.parametrize("name", PLAIN)
def test_bash_gives_the_program_that_value(name, tmp_path):
    before, after, without = map(as_bytes, PLAIN[name])
    argv = " ".join(argv_in_bash(after, tmp_path)).replace("=", " ").replace("_", "-")
    assert "--max-cap 512" in argv
    assert " ".join(argv_in_bash(before, tmp_path)).replace("=", " ").replace("_", "-") == argv.replace("512", "64")
    rest = " ".join(argv_in_bash(without, tmp_path)).replace("=", " ").replace("_", "-")
    assert rest.split() == argv.replace("--max-cap 512", "").split()


@pytest.mark.parametrize("name", ABSENT)
def test_an_absent_flag_is_added_in_the_files_style_and_comes_out_again(name):
    before, after = map(as_bytes, ABSENT[name])
    assert edit_arg(before, "--max-cap", "512") == after
    assert edit_arg(after, "--max-cap", None) == before
    assert edit_arg(before, "--max-cap", None) == before


@pytest.mark.parametrize("name", REFUSED)
def test_a_script_that_is_not_understood_is_refused_with_its_line(name, tmp_path):
    source, line = REFUSED[name]
    path = tmp_path / "serve.sh"
    path.write_text(source)
    with pytest.raises(MisuseError) as caught:
        read_arg(path, "max-cap")
    assert caught.value.problem.startswith(f"{path}:{line}: ")
    for value in ("512", "", None):
        with pytest.raises(MisuseError):
            edit_arg(source.encode(), "max-cap", value, path=path)


def test_a_flag_without_a_value_is_empty_and_not_absent(tmp_path):
    (tmp_path / "serve.sh").write_text("run --enable-x m --b\n")
    assert read_arg(tmp_path / "serve.sh", "enable-x").value == ""
    assert read_arg(tmp_path / "serve.sh", "enable-y") is None
    assert edit_arg(b"run m\n", "enable-x", "") == b"run m --enable-x\n"
    assert edit_arg(b"run --enable-x m --b\n", "enable-x", None) == b"run m --b\n"
    assert edit_arg(b"run --max-cap=64 --b\n", "max-cap", "") == b"run --max-cap --b\n"
    assert edit_arg(b"run --max-cap --b\n", "max-cap", "64") == b"run --max-cap 64 --b\n"


@pytest.mark.parametrize("value", ["a b", "it's", "$HOME", "-1", "a;b", "`x`", '"', "ü", "a\nb"])
def test_any_value_arrives_as_it_was_given(value, tmp_path):
    for source in (b"run --max-cap 64\n", b'run --max-cap="64"\n', b"run\n"):
        edited = edit_arg(source, "max-cap", value)
        assert value in "\n".join(argv_in_bash(edited, tmp_path))


def test_a_value_that_looks_like_a_flag_is_written_with_an_equals_sign_or_refused():
    assert edit_arg(b"run\n", "max-cap", "-x") == b"run --max-cap=-x\n"
    with pytest.raises(MisuseError, match="write --max-cap=VALUE"):
        edit_arg(b"run --max-cap 64\n", "max-cap", "-x")


def test_short_flags_and_those_with_one_dash_are_found():
    assert edit_arg(b"llama-server -m x -ngl 99 -c 4096\n", "-ngl", "10") == b"llama-server -m x -ngl 10 -c 4096\n"
    assert edit_arg(b"taskset -c 0-3 llama-server -c 4096\n", "-c", "1") == b"taskset -c 0-3 llama-server -c 1\n"
    with pytest.raises(MisuseError):
        edit_arg(b"llama-server -c4096\n", "-c", "1")
