import os
import stat
import subprocess

import pytest

from fakes.reference_stack import ask_now, chat, status, until
from vindicate.errors import CannotError, MisuseError
from vindicate.rehearse.reference_stack import KNOB, write_reference_stack
from vindicate.stack.file import read_stack


def test_writes_a_stack_file_that_declares_what_the_scripts_start(tmp_path):
    stack = read_stack(write_reference_stack(tmp_path / "new" / "dir"))
    assert stack.entry == "router"
    assert stack.restart_set(("decode",)) == ("prefill", "decode")
    assert stack.start_order(tuple(stack.services))[-1] == "router"
    assert stack.knob(KNOB).default == "256"
    for service in stack.services.values():
        script = service.launcher.file
        assert script.stat().st_mode & stat.S_IXUSR
        assert f"--port {service.port}" in script.read_text()
        subprocess.run(["bash", "-n", str(script)], check=True)


def test_every_port_is_another_one(tmp_path):
    stack = read_stack(write_reference_stack(tmp_path, proxy=True))
    ports = [service.port for service in stack.services.values()] + [stack.services["prefill"].bootstrap_port]
    assert len(set(ports)) == 5


@pytest.mark.parametrize(("value", "line"), [("512", f"export {KNOB}=512"), ("", f"export {KNOB}="), (None, None)])
def test_the_decode_script_alone_holds_the_knob(tmp_path, value, line):
    write_reference_stack(tmp_path, knob_value=value)
    lines = (tmp_path / "serve_decode.sh").read_text().splitlines()
    assert [each for each in lines if KNOB in each] == ([line] if line else [])
    assert KNOB not in (tmp_path / "serve_prefill.sh").read_text()


def test_puts_a_proxy_in_front_on_request(tmp_path):
    stack = read_stack(write_reference_stack(tmp_path, proxy=True, proxy_fault="none"))
    assert stack.entry == "proxy"
    assert stack.path_from("proxy") == ("proxy", "router", "prefill", "decode")
    assert stack.clients["harness"].match == "vindicate load"
    script = (tmp_path / "serve_proxy.sh").read_text()
    assert f"--upstream {stack.services['router'].url}" in script
    assert "--fault none" in script


def test_replaces_its_own_files_and_never_other_peoples(tmp_path):
    write_reference_stack(tmp_path, knob_value="256")
    write_reference_stack(tmp_path, knob_value="512")
    foreign = tmp_path / "serve_router.sh"
    foreign.write_text("#!/bin/sh\n")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(MisuseError, match=r"serve_router\.sh"):
        write_reference_stack(tmp_path, knob_value="384")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "options", [{"device": "gpu"}, {"router": "nginx"}, {"knob_value": "1; rm -rf x"}, {"knob_value": "$(id)"}]
)
def test_refuses_what_cannot_be_and_writes_nothing(tmp_path, options):
    with pytest.raises(MisuseError):
        write_reference_stack(tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


def test_says_how_to_get_a_router_of_others_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CannotError, match="sglang-router is not installed") as caught:
        write_reference_stack(tmp_path / "new", router="sglang-router")
    assert "pip install sglang-router" in caught.value.remedy
    assert not (tmp_path / "new").exists()


def test_declares_a_router_of_others_with_its_own_page_of_figures(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "smg"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    router = read_stack(write_reference_stack(tmp_path / "new", router="smg")).services["router"]
    assert router.engine == "smg"
    assert router.metrics != f"{router.url}/metrics"
    script = (tmp_path / "new" / "serve_router.sh").read_text()
    assert f"ROUTER={program}" in script
    assert f"--prometheus-port {router.metrics.split(':')[2].split('/')[0]}" in script


def test_says_so_when_the_directory_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotError, match="file"):
        write_reference_stack(tmp_path / "file" / "dir")


def test_on_the_cpu_no_file_speaks_of_cards(tmp_path):
    stack = read_stack(write_reference_stack(tmp_path, device="cpu"))
    assert [service.gpus for service in stack.services.values()] == [()] * 3
    said = "".join(path.read_text() for path in tmp_path.iterdir())
    assert said.count("--device cpu") == 2
    assert not any(word in said for word in ("simulated", "CUDA", "gpus"))


def test_says_before_anything_is_written_that_the_cpu_needs_numba(tmp_path, monkeypatch):
    monkeypatch.setattr("vindicate.rehearse.reference_stack.find_spec", lambda name: None)
    with pytest.raises(CannotError, match="numba") as caught:
        write_reference_stack(tmp_path / "new", device="cpu")
    assert "vindicate[cpu]" in caught.value.remedy
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("device", ["simulated:rtx-pro-6000", "cpu"])
def test_the_scripts_start_a_stack_that_answers_with_the_knob_in_its_process(tmp_path, device):
    stack = read_stack(write_reference_stack(tmp_path, device=device, knob_value="512"))
    processes = {}
    try:
        for name in stack.start_order(tuple(stack.services)):
            with (tmp_path / f"{name}.log").open("wb") as log:
                processes[name] = subprocess.Popen(
                    [stack.services[name].launcher.file], stdout=log, stderr=log, cwd="/", env=os.environ
                )
        router = stack.services["router"].url
        until(lambda: status(router + "/readiness") == 200, "the router is ready")
        answer = ask_now(router, chat("The value of KEY-1 is VAL-1. What is the value of KEY-1?", max_tokens=2))
        assert answer.text == "VAL-1 as"
        with open(f"/proc/{processes['decode'].pid}/environ", "rb") as environ:
            assert f"{KNOB}=512".encode() in environ.read().split(b"\0")
        with open(f"/proc/{processes['decode'].pid}/cmdline", "rb") as cmdline:
            assert b"vindicate.reference" in cmdline.read()  # the script became the service
    finally:
        for process in processes.values():
            process.kill()
            process.wait(10)
