"""Flags of the command in a start script: read, changed byte for byte, added, taken out, or refused with the line."""

import pytest

from vindicate.errors import MisuseError
from vindicate.operate.script_flag import _FlagScript, edit_flag

FLAG = "--max-running-requests"
SGLANG = """#!/bin/bash
set -e
export CUDA_VISIBLE_DEVICES=0,1   # ours
exec python -m sglang.launch_server \\
  --model-path "$MODEL" \\
  --max-running-requests 64 \\
  --tp 8 \\
  > decode.log 2>&1
"""


def value_in(text, flag=FLAG):
    found = _FlagScript(text.encode(), flag, None).value()
    return found and (found.value, found.line)


def edited(text, value, flag=FLAG):
    return edit_flag(text.encode(), flag, value).decode()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (SGLANG, ("64", 6)),
        (f"vllm serve M {FLAG}=64\n", ("64", 1)),
        (f"vllm serve M {FLAG} '64'\n", ("64", 1)),
        (f'vllm serve M "{FLAG}=64"\n', ("64", 1)),
        ("vllm serve M --max_running_requests 64\n", ("64", 1)),
        (f"vllm serve M {FLAG} -1\n", ("-1", 1)),
        (f"vllm serve M {FLAG} --other\n", ("", 1)),
        (f"vllm serve M {FLAG}\n", ("", 1)),
        ("vllm serve M --other 64\n", None),
        (f"vllm serve M --other 64  # {FLAG} 3\n", None),
        (f'ARGS=(--a 1 {FLAG} 64)\nvllm serve M "${{ARGS[@]}}"\n', ("64", 1)),
        (f'ARGS=(--a 1)\nARGS+=({FLAG} 64)\nvllm serve M "${{ARGS[@]}}" --b\n', ("64", 2)),
        (f'ARGS=({FLAG} 64)\n[ -n "$X" ] && ARGS+=(--tp 2)\nvllm serve "${{ARGS[@]}}"\n', ("64", 1)),
        (f'if true; then ARGS+=(--tp 2); fi\nvllm serve "${{ARGS[@]}}" {FLAG} 64\n', ("64", 2)),
        (f"nohup numactl --cpunodebind 0 env A=1 python s.py {FLAG} 64 >log 2>&1 &\nwait\n", ("64", 1)),
        (f'cd /srv && exec python s.py {FLAG} 64 "$@"\n', ("64", 1)),
        (f'python s.py {FLAG} 64 ${{KEY:+--api-key "$KEY"}} --port $PORT --n $(nproc)\n', ("64", 1)),
        (f"python s.py {FLAG} 64 2>&1 | tee log\n", ("64", 1)),
        (f'pip install x\npython s.py {FLAG} 64 --name="$NAME" --url=http://$HOST:1\n', ("64", 2)),
    ],
)  # fmt: skip
def test_reads_what_the_command_is_given(text, value):
    assert value_in(text) == value


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (f"vllm serve M {FLAG} $N\n", 1, "only known when it runs"),
        (f"vllm serve M\\\n {FLAG}=$N\n", 2, "only known when it runs"),
        (f"vllm serve M {FLAG} 1 {FLAG} 2\n", 1, "more than once"),
        (f"vllm serve M {FLAG} 1 2 4\n", 1, "several words"),
        ("vllm serve M --max-running 64\n", 1, "may be short for"),
        (f"EXTRA='{FLAG} 3'\nvllm serve M $EXTRA\n", 2, "may hold"),
        ("vllm serve M $EXTRA\n", 1, "may hold"),
        ("vllm serve M $(cat flags)\n", 1, "may hold"),
        ('vllm serve M "${ARGS[@]}"\n', 1, "does not set"),
        ('mapfile -t ARGS < f\nvllm serve M "${ARGS[@]}"\n', 1, "fills ARGS"),
        ('ARGS=(a)\nARGS[0]=b\nvllm serve M "${ARGS[@]}"\n', 2, "not understood"),
        (f'ARGS=(--a)\nif true; then ARGS+=({FLAG} 64); fi\nvllm serve "${{ARGS[@]}}"\n', 2, "only sometimes"),
        (f'ARGS=({FLAG})\nif true; then ARGS+=(64); fi\nvllm serve "${{ARGS[@]}}"\n', 2, "only sometimes"),
        (f'set -- {FLAG} 3\nvllm serve "$@"\n', 1, "its own arguments"),
        (f"if true; then\n vllm serve M {FLAG} 64\nfi\n", 2, "inside a if statement"),
        (f"f() {{\n vllm serve M {FLAG} 64\n}}\nf\n", 2, "inside a compound statement"),
        (f"bash -c 'vllm serve M {FLAG} 64'\n", 1, "through another program"),
        (f"docker run image {FLAG} 64\n", 1, "through another program"),
        (f'tmux new -d "vllm serve M {FLAG} 64"\n', 1, "through another program"),
        (f"eval vllm serve M {FLAG} 64\n", 1, "another meaning"),
        (f"python s.py {FLAG} 64 &\npython warm.py\n", 1, "more than one program"),
        (f"exec python s.py {FLAG} 64\npython other.py\n", 1, "never comes to"),
        (f"vllm serve M {FLAG} 64\r\n", 1, "CR LF"),
        (f"echo {FLAG} 64\nvllm serve M\n", 1, "given unseen"),
        (f"cat <<X\n{FLAG} 3\nX\nvllm serve M\n", 2, "given unseen"),
        ("echo hello\n", 1, "runs no program"),
        ("vllm serve 'M\n", 1, "not understood"),
    ],
)  # fmt: skip
def test_refuses_what_may_be_otherwise_when_it_runs(text, line, why):
    with pytest.raises(MisuseError) as caught:
        value_in(text)
    assert f"script:{line}:" in caught.value.problem, caught.value.problem
    assert why in caught.value.problem


@pytest.mark.parametrize(
    ("before", "value", "after"),
    [
        (SGLANG, "128", SGLANG.replace("64", "128")),
        (SGLANG, None, SGLANG.replace("  --max-running-requests 64 \\\n", "")),
        (SGLANG.replace("  --max-running-requests 64 \\\n", ""), "64", SGLANG.replace("  --max-running-requests 64 \\\n", "").replace("--tp 8 \\\n", "--tp 8 \\\n  --max-running-requests 64 \\\n")),
        (f"vllm serve M {FLAG}=64 --a\n", "8", f"vllm serve M {FLAG}=8 --a\n"),
        (f'vllm serve M "{FLAG}=64" --a\n', "8", f'vllm serve M "{FLAG}=8" --a\n'),
        (f'vllm serve M {FLAG} "64" --a\n', "8", f'vllm serve M {FLAG} "8" --a\n'),
        (f"vllm serve M {FLAG} 64 --a\n", "a b$c", f"vllm serve M {FLAG} 'a b$c' --a\n"),
        ("vllm serve M --max_running_requests 64\n", "8", "vllm serve M --max_running_requests 8\n"),
        (f"vllm serve M {FLAG} 64 --a\n", None, "vllm serve M --a\n"),
        (f"vllm serve M {FLAG} --a\n", None, "vllm serve M --a\n"),
        (f"vllm serve M {FLAG} --a\n", "8", f"vllm serve M {FLAG} 8 --a\n"),
        ("vllm serve M >log &\n", "", f"vllm serve M {FLAG} >log &\n"),
        ("exec ./serve\n", "3", f"exec ./serve {FLAG} 3\n"),
        ('A=(\n  --a 1  # one\n  --b 2\n)\nvllm serve "${A[@]}"\n', "3", f'A=(\n  --a 1  # one\n  --b 2\n)\nvllm serve "${{A[@]}}" {FLAG} 3\n'),
        (f'A=(\n  --a 1  # one\n  {FLAG} 2\n  --b\n)\nvllm serve "${{A[@]}}"\n', None, 'A=(\n  --a 1  # one\n  --b\n)\nvllm serve "${A[@]}"\n'),
        (f'A=(\n  --a 1\n  {FLAG} 2\n)\nvllm serve "${{A[@]}}"', None, 'A=(\n  --a 1\n)\nvllm serve "${A[@]}"'),
        (f"vllm serve M {FLAG} 64", "64", f"vllm serve M {FLAG} 64"),
    ],
)  # fmt: skip
def test_changes_only_the_flag(before, value, after):
    assert edited(before, value) == after


@pytest.mark.parametrize("value", ["--other", "--"])
def test_refuses_a_value_that_would_be_a_flag(value):
    with pytest.raises(MisuseError, match="for a flag"):
        edited(f"vllm serve M {FLAG} 64\n", value)


def test_a_value_is_not_taken_away_from_a_flag_that_may_need_one():
    with pytest.raises(MisuseError, match="unset it first"):
        edited(f"vllm serve M {FLAG} 64\n", "")


@pytest.mark.parametrize("name", ["max-running-requests", "max_running_requests", "--max_running_requests", FLAG])
def test_one_flag_in_all_its_spellings(name):
    assert value_in(SGLANG, name) == ("64", 6)


def test_short_flags_of_llama_cpp():
    assert value_in("llama-server -m x -c 4096 -ngl 99\n", "-c") == ("4096", 1)
    assert edited("llama-server -m x -c 4096 -ngl 99\n", "8192", "-c") == "llama-server -m x -c 8192 -ngl 99\n"
    with pytest.raises(MisuseError, match="may be -c with its value"):
        value_in("llama-server -m x -c4096\n", "-c")
