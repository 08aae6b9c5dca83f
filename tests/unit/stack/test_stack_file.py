"""A stack file is understood, or the complaint names file, line and key."""

import pytest

from vindicate.errors import MisuseError
from vindicate.stack.file import find_stack_file, load_stack, read_stack

GOOD = """\
[stack]
name  = "dsv4"
entry = "proxy"

[services.proxy]
role     = "proxy"
engine   = "litellm"
url      = "http://127.0.0.1:4000/"
upstream = ["router"]

[services.router]
role = "router"
engine = "sglang-router"
url = "http://127.0.0.1:8000"
metrics = "http://127.0.0.1:29000/metrics"
upstream = ["prefill", "decode"]

[services.prefill]
role = "prefill"
engine = "sglang"
url = "http://127.0.0.1:30000"
restart_with = ["decode"]

[services.decode]
role = "decode"
engine = "sglang"
url = "http://127.0.0.1:30001"
gpus = [4, 5, 6, 7]
launcher = { kind = "script", file = "serve_decode.sh", log = "decode.log" }
restart_with = ["prefill"]
health = "/health"
api_key_env = "DSV4_KEY"

[knobs.SGLANG_SM120_MMA_TARGET_CTAS]
services = ["decode"]
kind     = "env"
default  = "256"

[clients.harness]
match = "agent_harness.py"
"""


@pytest.fixture
def write(tmp_path):
    def write_stack(text):
        path = tmp_path / "vindicate.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_stack


def test_reads_the_contracts_own_example(write, tmp_path):
    stack = read_stack(write(GOOD))
    assert (stack.name, stack.entry, list(stack.services)) == (
        "dsv4",
        "proxy",
        ["proxy", "router", "prefill", "decode"],
    )
    assert stack.service("proxy").url == "http://127.0.0.1:4000"
    assert stack.service("decode").metrics == "http://127.0.0.1:30001/metrics"
    assert stack.service("decode").launcher.file == tmp_path / "serve_decode.sh"
    assert stack.knob("SGLANG_SM120_MMA_TARGET_CTAS").default == "256"
    assert stack.home == tmp_path / ".vindicate"


def test_restart_sets_and_orders_follow_the_file(write):
    stack = read_stack(write(GOOD))
    assert stack.restart_set(("decode",)) == ("prefill", "decode")
    assert stack.start_order(tuple(stack.services)) == ("prefill", "decode", "router", "proxy")
    assert stack.path_from("proxy") == ("proxy", "router", "prefill", "decode")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('url = "http://127.0.0.1:30001"', 'url = "localhost"', "'localhost'"),
        ('url = "http://127.0.0.1:30001"', 'url = "http://127.0.0.1:notaport"', "notaport"),
        ('url = "http://127.0.0.1:30001"', 'url = "http://user:pw@127.0.0.1:1"', "password"),
        ('role = "decode"', 'role = "decoder"', "'decoder'"),
        ('upstream = ["router"]', 'upstream = ["ruter"]', "'ruter'"),
        ('entry = "proxy"', 'entry = "prxy"', "'prxy'"),
        ('kind = "script", file = "serve_decode.sh", log', 'kind = "skript", log', "'skript'"),
        ('kind = "script", file = "serve_decode.sh", log', 'kind = "script", fil = "x", log', "'fil'"),
        ('default  = "256"', "default  = 256", "256"),
        ('services = ["decode"]', "services = []", "empty"),
        ('api_key_env = "DSV4_KEY"', 'api_key_env = "sk-123"', "NAME"),
        ("gpus = [4, 5, 6, 7]", 'gpus = "4"', "'4'"),
        ('match = "agent_harness.py"', "match = 3", "3"),
        ("[knobs.SGLANG", "[knobz.SGLANG", "knobz"),
        ('entry = "proxy"', "entry = 0", "0"),
        ('entry = "proxy"', "entry = []", "[]"),
        ('entry = "proxy"', "entry = [1]", "[1]"),
        ('entry = "proxy"', "entry = {a = 1}", "{'a': 1}"),
        ('name  = "dsv4"', "name = 3", "3"),
        ('url = "http://127.0.0.1:30001"', 'url = "http://127.0.0.1:1 x"', "127.0.0.1:1 x"),
        ('url = "http://127.0.0.1:30001"', 'url = "http://127.0.0.1:1/a?b=c"', "more than a path"),
        ('url = "http://127.0.0.1:30001"', 'url = "http://user@127.0.0.1:1"', "login"),
        ('metrics = "http://127.0.0.1:29000/metrics"', 'metrics = "http://h/m?api_key=x1"', "key"),
        ("gpus = [4, 5, 6, 7]", "pid = 1000000000000000000000000000000", "range"),
        ("gpus = [4, 5, 6, 7]", "pid = 0", "range"),
        ("gpus = [4, 5, 6, 7]", "bootstrap_port = -1", "range"),
        ("gpus = [4, 5, 6, 7]", 'pidfile = "a\\u0000b"', "NUL"),
        ('health = "/health"', 'health = "/he alth"', "blanks"),
        ('match = "agent_harness.py"', "pid = -1", "range"),
    ],
)
def test_names_the_line_and_the_value_of_what_is_wrong(write, old, new, says):
    line = GOOD[: GOOD.index(old)].count("\n") + 1
    path = write(GOOD.replace(old, new))
    with pytest.raises(MisuseError) as caught:
        read_stack(path)
    assert f"{path}:{line}:" in caught.value.problem
    assert says in caught.value.problem
    assert caught.value.remedy


@pytest.mark.parametrize(
    "text", ["", "[stack]\nname='x'\n", "stack = 3", "[stack\n", "[services]\n", "[services.a]\nrole='engine'\n"]
)
def test_a_file_that_is_no_stack_file_is_a_clear_error(write, text):
    with pytest.raises(MisuseError):
        read_stack(write(text))


def test_nesting_without_end_is_a_clear_error(write):
    with pytest.raises(MisuseError, match="no valid TOML"):
        read_stack(write("a = " + "[" * 10_000))


@pytest.mark.parametrize("find", [find_stack_file, load_stack])
def test_a_name_longer_than_any_file_has_is_a_clear_error(find):
    with pytest.raises(MisuseError, match="no stack file"):
        find("x" * 5000)


def test_bytes_that_are_no_text_are_a_clear_error(tmp_path):
    path = tmp_path / "vindicate.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MisuseError, match="UTF-8"):
        read_stack(path)


def test_finds_the_file_by_option_folder_then_environment(write, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.delenv("VINDICATE_STACK", raising=False)
    assert find_stack_file(None) is None
    with pytest.raises(MisuseError, match="no stack file"):
        load_stack(None)
    path = write(GOOD)
    monkeypatch.setenv("VINDICATE_STACK", str(path))
    assert load_stack(None).name == "dsv4"
    monkeypatch.setenv("VINDICATE_STACK", str(tmp_path / "gone.toml"))
    with pytest.raises(MisuseError, match=r"gone\.toml"):
        find_stack_file(None)
    assert find_stack_file(str(tmp_path)) == path
