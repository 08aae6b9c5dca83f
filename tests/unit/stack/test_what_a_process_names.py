"""Command lines, titles and configuration lines → upstreams, and what kind of program it is."""

import pytest

from vindicate.stack import named
from vindicate.stack.ask import Answers, _read_families
from vindicate.stack.http import Exchange
from vindicate.stack.roles import Node, parts_of

PYTHON = "/usr/bin/python3.11"


@pytest.fixture
def process(monkeypatch):
    """A process with that command line, as far as `named` looks."""

    def made(*argv):
        monkeypatch.setattr(named, "argv_of", lambda _pid: [*argv])
        return 1

    return made


@pytest.mark.parametrize(
    ("argv", "serves", "engine"),
    [
        ((PYTHON, "-m", "sglang.launch_server", "--model-path", "m"), True, True),
        ((PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--port", "1"), True, True),
        ((PYTHON, "/srv/x/server.py", "--served-model-name", "m"), True, True),
        (("/opt/llama-server", "-m", "x.gguf"), True, True),
        (("sglang-router",), True, False),
        ((PYTHON, "-m", "sglang_router.launch_router", "--port", "1"), True, False),
        ((PYTHON, "/venv/bin/vllm-router", "--port", "1"), True, False),
        ((PYTHON, "/venv/bin/litellm", "--config", "x.yaml"), True, False),
        ((PYTHON, "-m", "vindicate", "rehearse", "proxy"), True, False),
        ((PYTHON, "/home/llama/vllm/collect.py"), False, False),
        (("redis-server", "*:6379"), False, False),
        (("/usr/bin/prometheus", "--model-path", "x"), False, False),
        ((PYTHON, "-m", "http.server"), False, False),
        ((), False, False),
    ],
)
def test_knows_a_model_server_by_its_program_or_options(process, argv, serves, engine):
    pid = process(*argv)
    assert (named.is_model_server(pid), named.is_engine(pid)) == (serves, engine)


@pytest.mark.parametrize(
    ("argv", "upstream"),
    [
        (("--prefill", "http://127.0.0.1:1001", "8998", "--decode", "http://127.0.0.1:1002"), {1001: True, 1002: True}),
        (("--worker-urls", "http://a:1", "http://b:2"), {1: True, 2: True}),
        (("--upstream=127.0.0.1:3",), {3: True}),
        (("http://127.0.0.1:4",), {4: True}),
        (("--listen", "127.0.0.1:5", "--host", "127.0.0.1"), {}),
        (("--otlp-traces-endpoint", "http://127.0.0.1:6", "--database-url", "http://h:7"), {6: False, 7: False}),
        (
            (
                "--redis-url",
                "redis://127.0.0.1:8",
            ),
            {},
        ),
        (("--colour", "http://127.0.0.1:9"), {9: None}),
        (("--upstream", "http://127.0.0.1:99999"), {}),
        (("--upstream", "https://[::1]:10/v1"), {10: True}),
    ],
)
def test_an_option_says_by_its_name_whether_it_names_an_upstream(process, argv, upstream):
    assert {one.port: one.upstream for one in named.named_by(process("prog", *argv))} == upstream


def test_the_metrics_of_a_router_name_its_workers():
    page = b'smg_worker_health{worker="http://127.0.0.1:31001"} 1\nsmg_worker_health{worker="grpc-2"} 1\nother{worker="http://127.0.0.1:9"} 1\n'
    made = Answers()
    _read_families(made, "http://127.0.0.1:29000/metrics", Exchange("u", status=200, body=page, complete=True))
    assert (made.router, made.workers) == ("sglang-router", {"http://127.0.0.1:31001": ""})


def test_the_metrics_of_a_router_tell_the_sides_of_a_split_pair():
    page = (
        b'vllm_router_pd_prefill_requests_total{worker="http://127.0.0.1:1"} 7\n'
        b'vllm_router_pd_decode_errors_total{worker="http://127.0.0.1:2"} 1\n'
        b'vllm_router_worker_health{worker="http://127.0.0.1:1"} 1\nvllm_router_worker_health{worker="http://127.0.0.1:3"} 1\n'
        b'vllm_router_prefill_x{worker="http://127.0.0.1:4"} 1\nvllm_router_decode_x{worker="http://127.0.0.1:4"} 1\n'
    )
    made = Answers()
    _read_families(made, "http://127.0.0.1:29000/metrics", Exchange("u", status=200, body=page, complete=True))
    assert [made.workers[f"http://127.0.0.1:{n}"] for n in (1, 2, 3, 4)] == ["prefill", "decode", "", ""]


@pytest.mark.parametrize(
    ("option", "engine", "role"),
    [
        ("--prefill", "vllm", "prefill"),
        ("its own metrics (decode)", "vllm", "decode"),
        ("--prefill-decode-url", "vllm", "engine"),
        ("--worker-urls", "vllm", "engine"),
        ("--decode", None, "engine"),  # a stranger that answers like no engine
    ],
)
def test_a_side_that_does_not_say_what_it_is_is_what_its_caller_calls_it(option, engine, role):
    called = Node("http://127.0.0.1:2", 2, (), answers=Answers(spoke=True, engine=engine), option=option)
    caller = Node(
        "http://127.0.0.1:1", 1, (), answers=Answers(spoke=True, router="vllm-router"), upstream={"2": "named"}
    )
    assert parts_of({"1": caller, "2": called})["2"].role == role
