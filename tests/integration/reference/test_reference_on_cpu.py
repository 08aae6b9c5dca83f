"""The stack on ``--device cpu``: real attention in decode, over pages that came from prefill by TCP; the same answers as simulated."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from itertools import islice, takewhile

import numpy as np
import pytest

from fakes.reference_stack import ask, ask_now, chat, free_ports, get, metric, running_stack, until
from vindicate.reference.attention import PAGE, exact_attention
from vindicate.reference.induction import WIDTH, AttentionModel
from vindicate.reference.kv import header
from vindicate.reference.model import CopyModel

ON_CPU = {"prefill": ["--device", "cpu"], "decode": ["--device", "cpu"]}
KNOB = "SGLANG_SM120_MMA_TARGET_CTAS"


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with running_stack(tmp_path_factory.mktemp("cpu"), env={KNOB: "6"}, **ON_CPU) as running:
        yield running


def planted(number: int, *, talk: int = 0) -> str:
    return f"The value of KEY-{number} is VAL-{number}. {'talk ' * talk}What is the value of KEY-{number}?"


def shortcut(question: str, n: int) -> str:
    """What the simulated device says, without a stack around it."""
    answer = CopyModel().begin(CopyModel().prefill(f"<|user|>\n{question}\n"))
    return "".join(token or "" for token in takewhile(lambda token: token is not None, islice(answer, n)))


def idle(stack) -> bool:
    return (
        metric(stack.url("decode"), "sglang:num_used_tokens")
        == 0
        == metric(stack.url("decode"), "sglang:num_running_reqs")
    )


def told(stack) -> dict:
    return json.loads(get(stack.url("decode") + "/server_info")[1])


def test_says_what_the_simulated_device_says_of_long_and_of_wide_prompts_at_once(stack):
    questions = [planted(n, talk=600 * n) for n in range(12)]
    questions += [f"K={'日本語é' * 9}. K?", "no question", "K=... and K?", f"K={'v' * 200} K?"]

    async def play():
        return await asyncio.gather(*(ask(stack.url("router"), chat(text, max_tokens=20)) for text in questions))

    answers = asyncio.run(play())
    assert [answer.text for answer in answers] == [shortcut(text, 20) for text in questions]
    assert all(answer.done for answer in answers)
    until(lambda: idle(stack), "nothing is left")


def test_goes_on_past_the_end_when_told_to(stack):
    answer = ask_now(stack.url("router"), chat(planted(1), max_tokens=64, ignore_eos=True))
    assert (answer.finish, answer.n_tokens) == ("length", 64)
    assert ask_now(stack.url("router"), chat(planted(1), max_tokens=64)).finish == "stop"


def test_is_not_called_simulated_and_says_how_its_kernel_cuts(stack):
    answer = ask_now(stack.url("router"), chat(planted(1), max_tokens=1))
    assert "x-vindicate-simulated" not in answer.headers
    facts = told(stack)
    assert (facts["device"], facts["simulated"], facts["split_k_target_ctas"]) == ("cpu", False, 6)


def test_the_pages_themselves_travel(stack):
    before = metric(stack.url("prefill"), "sglang:kv_transfer_total_mb_sum")
    question = planted(1, talk=2000)
    ask_now(stack.url("router"), chat(question, max_tokens=1))
    moved = metric(stack.url("prefill"), "sglang:kv_transfer_total_mb_sum") - before
    assert moved == pytest.approx(len(question) * 2 * WIDTH * 4 / 2**20, rel=0.05)


@contextlib.asynccontextmanager
async def prefill_that_sends(kv: bytes):
    """A bootstrap port that hands out *kv*, checksum and all."""

    async def send(reader, writer):
        room = json.loads(await reader.readline())["room"]
        writer.writelines((header(room, kv), kv))
        await reader.readline()
        writer.close()

    server = await asyncio.start_server(send, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


def test_decode_answers_from_the_pages_and_a_page_lost_before_the_checksum_shows_as_a_wrong_answer(stack):
    model = AttentionModel(exact_attention)
    text = "talk " * 40 + planted(5, talk=40)
    whole = model.prefill(text)
    pages = (
        np.frombuffer(whole, np.float32, offset=len(whole) % (2 * PAGE * WIDTH * 4)).reshape(-1, 2, PAGE, WIDTH).copy()
    )
    pages[(1 + text.index("VAL-5")) // PAGE] = 0
    lost = whole[: len(whole) % (2 * PAGE * WIDTH * 4)] + pages.tobytes()

    async def play(kv, room):
        async with prefill_that_sends(kv) as port:
            return await ask(stack.url("decode"), chat("x", max_tokens=1, **stack.bootstrap(room=room, port=port)))

    assert asyncio.run(play(whole, 1)).text == "VAL-5"
    assert asyncio.run(play(lost, 2)).text == " as"
    refused = asyncio.run(play(CopyModel().prefill(text), 3))
    assert refused.status == 500
    assert "no KV of this model" in refused.body


def test_those_who_leave_in_the_middle_leave_no_page_behind(stack):
    async def play():
        bodies = [chat(planted(n, talk=400), max_tokens=100_000, ignore_eos=True) for n in range(16)]
        legs = [asyncio.create_task(ask(stack.url("router"), body)) for body in bodies]
        await asyncio.sleep(0.2)
        for leg in legs[::2]:
            leg.cancel()
        await asyncio.to_thread(
            until, lambda: metric(stack.url("decode"), "sglang:num_running_reqs") == 8, "eight are left"
        )
        for leg in legs:
            leg.cancel()

    asyncio.run(play())
    until(lambda: idle(stack), "nothing is left")
    until(lambda: told(stack)["internal_states"][0]["kv_pages_taken"] == 0, "no page is left")
    assert ask_now(stack.url("router"), chat(planted(1), max_tokens=1)).text == "VAL-1"


def test_says_what_is_missing_when_there_is_no_numba(tmp_path):
    (tmp_path / "numba.py").write_text("raise ImportError(\"No module named 'numba'\")\n")
    argv = [
        sys.executable,
        "-m",
        "vindicate.reference",
        "decode",
        "--device",
        "cpu",
        "--port",
        str(free_ports("a")["a"]),
    ]
    ended = subprocess.run(
        argv, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 4
    assert "No module named 'numba'" in ended.stderr
    assert "pip install 'vindicate[cpu]'" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_nothing_imports_numba_but_decode_on_the_cpu():
    code = "import sys, vindicate.cli, vindicate.reference.__main__ as main, vindicate.rehearse.reference_stack\n"
    code += "from vindicate.reference.device import make_device\n"
    code += "for name in ('simulated:rtx-pro-6000', 'cpu'): main.make_model(make_device(name, has_knob=False))\n"
    code += "print('numba' in sys.modules)\n"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
