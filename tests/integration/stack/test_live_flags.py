"""What a process was started with is read from its command line, its launcher's, or what SGLang says; a title is never taken for it."""

import json
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import psutil
import pytest

from vindicate.stack.arguments import argument_readings, read_arguments, read_flag
from vindicate.stack.model import Service
from vindicate.stack.process import process_tree

# What setproctitle does to the command line: fields 48 and 49 of proc_pid_stat(5).
TITLE = """
import sys
stat = open("/proc/self/stat").read().rpartition(")")[2].split()
start, stop = int(stat[45]), int(stat[46])
with open("/proc/self/mem", "r+b", 0) as memory:
    memory.seek(start)
    memory.write(b"sglang::scheduler_TP0"[: stop - start - 1].ljust(stop - start, bytes(1)))
"""
WAIT = "import sys; print('ready', flush=True); sys.stdin.read()"
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {code!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(child.stdout.readline().decode().strip(), flush=True)
sys.stdin.read()
child.communicate()
"""


@pytest.fixture
def start():
    children = []

    def run(code, *flags, before=()):
        argv = [*before, sys.executable, "-c", code, *flags]
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        children.append(child)
        assert child.stdout.readline() == b"ready\n"
        return child.pid

    yield run
    for child in children:
        child.communicate()


@pytest.fixture
def says():
    """A function that serves one document at /server_info; it gives the URL."""
    servers = []

    def serve(document):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                data = json.dumps(document).encode()
                self.send_response(200 if self.path == "/server_info" else 404)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def service_at(url, pid, engine="sglang"):
    return Service(name="x", role="engine", engine=engine, url=url, metrics=f"{url}/metrics", health="/health", pid=pid)


@pytest.mark.parametrize(("flags", "value"), [
    (("--max-cap", "64"), "64"), (("--max_cap=64",), "64"), (("--max-cap", ""), ""), (("--max-cap", "--b"), ""), (("--b", "1"), None),
    (("--max-cap", "-1"), "-1"), (("--max-cap", "a b"), "a b"),
])  # fmt: skip
def test_a_whole_command_line_says_it(start, flags, value):
    pid = start(WAIT, *flags)
    reading = read_flag(pid, "max-cap")
    assert (reading.value, reading.problem, reading.elsewhere) == (value, None, "")


@pytest.mark.parametrize("flags", [("--max-cap", "1", "--max-cap=2"), ("--max-c", "1"), ("--max-cap", "1", "2")])
def test_a_command_line_that_is_unclear_is_not_known_rather_than_unset(start, flags):
    reading = read_flag(start(WAIT, *flags), "--max-cap")
    assert reading.value is None
    assert "command line of pid" in reading.problem


def test_a_title_is_no_command_line_and_what_started_the_process_is_asked(start):
    parent = start(PARENT.format(code=TITLE + WAIT), "--max-cap", "64")
    child = process_tree([parent])[1]
    assert read_arguments(child) is None
    reading = read_flag(child, "--max-cap")
    assert (reading.value, reading.elsewhere) == ("64", f"/proc/{parent}/cmdline")


def test_a_worker_without_flags_of_its_own_holds_its_launchers(start):
    parent = start(PARENT.format(code=WAIT), "--max-cap=64")
    assert read_flag(process_tree([parent])[1], "--max-cap").value == "64"


def test_a_wrapper_holds_what_it_started(start):
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WAIT!r}, '--max-cap', '64'])"
    assert read_flag(start(code), "--max-cap").value == "64"


def test_a_shell_above_is_another_program(start):
    shell = f"{sys.executable} -c '{WAIT.replace(chr(39), chr(34))}'; true"
    child = subprocess.Popen(["bash", "-c", shell, "--max-cap", "9"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)  # fmt: skip
    try:
        assert child.stdout.readline() == b"ready\n"
        assert read_flag(process_tree([child.pid])[1], "--max-cap").value is None
    finally:
        child.communicate()


def test_a_title_alone_is_not_known(start):
    reading = read_flag(start(TITLE + WAIT, "--max-cap", "64"), "--max-cap")
    assert reading.value is None
    assert "written over its command line" in reading.problem


@pytest.mark.parametrize(("document", "value", "where"), [
    ({"launch_command": "python -m sglang.launch_server --max-cap 64"}, "64", "launch_command"),
    ({"launch_command": "python -m sglang.launch_server", "max_cap": 9}, None, "launch_command"),
    ({"max_cap": 64}, "64", "default"),
    ({"server_args": {"max_cap": 0.5}}, "0.5", "default"),
    ({"max_cap": None}, None, "default"),
    ({"max_cap": True}, "", "default"),
    ({"max_cap": False}, None, "default"),
])  # fmt: skip
def test_sglang_is_asked_where_no_command_line_is_whole(start, says, document, value, where):
    pid = start(TITLE + WAIT, "--max-cap", "1")
    (reading,) = argument_readings(service_at(says(document), pid), "--max-cap")
    assert (reading.value, reading.problem) == (value, None)
    assert where in reading.elsewhere


@pytest.mark.parametrize(("document", "engine"), [({}, "sglang"), ({"max_cap": [1]}, "sglang"), ({"max_cap": 64}, "vllm")])  # fmt: skip
def test_what_nobody_says_is_not_known(start, says, document, engine):
    pid = start(TITLE + WAIT, "--max-cap", "1")
    (reading,) = argument_readings(service_at(says(document), pid, engine), "--max-cap")
    assert reading.problem is not None


def test_a_process_that_is_ending_has_no_command_line_any_more():
    child = subprocess.Popen(["true"])
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert read_arguments(child.pid) is None
    child.wait()


def test_a_process_that_is_gone_is_left_out():
    child = subprocess.Popen(["true"])
    child.wait()
    assert argument_readings(service_at("http://127.0.0.1:9", child.pid), "--max-cap") == ()
