"""What live processes have in memory decides whether a claim is in scope; real processes that map real files."""

import contextlib
import io
import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from vindicate import cli
from vindicate.clock import utc_now
from vindicate.ledger.live import coherence
from vindicate.ledger.present import seen_now
from vindicate.ledger.scope import Known
from vindicate.ledger.state import Book
from vindicate.ledger.store import Ledger
from vindicate.ledger.worth import worth_of
from vindicate.record.ledger import Change, ChangeStep, Claim, Effect, Evidence, Justification
from vindicate.stack.file import read_stack

PROGRAM = "import mmap,sys; f=open(sys.argv[1],'rb'); m=mmap.mmap(f.fileno(),0,prot=mmap.PROT_READ); print('up',flush=True); sys.stdin.read()"


def installed(folder, version):
    """A site-packages folder with that NCCL in it, installed long ago; its library."""
    home = folder / "lib" / "python3.12" / "site-packages"
    library = home / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"x" * 4096)
    (home / f"nvidia_nccl_cu12-{version}.dist-info").mkdir()
    os.utime(home / f"nvidia_nccl_cu12-{version}.dist-info", (1_700_000_000, 1_700_000_000))
    return library


@pytest.fixture
def worker():
    with ExitStack() as started:

        def start(library: Path) -> int:
            process = started.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", PROGRAM, library], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            )
            started.callback(process.kill)
            assert process.stdout.readline() == b"up\n"
            return process.pid

        yield start


def nccl(tmp_path, pids, scope="nccl < 2.22.3"):
    services = "".join(
        f'[services.{name}]\nrole = "engine"\nurl = "http://127.0.0.1:1"\npid = {pid}\n' for name, pid in pids.items()
    )
    (tmp_path / "vindicate.toml").write_text(f'[stack]\nname = "s"\n{services}')
    with Ledger.scratch() as ledger:
        ledger.append(Claim(id="H1", text="it hangs", scope=scope))
        book = seen_now(read_stack(tmp_path / "vindicate.toml"), Book.from_facts(ledger.facts()))
    return book.present.get("nccl"), book.scopes["H1"]


def test_the_version_in_the_memory_of_a_worker_is_read_without_asking_it(tmp_path, worker):
    pid = worker(installed(tmp_path / "venv", "2.27.3"))
    known, scope = nccl(tmp_path, {"server": pid})
    assert known == Known(value="2.27.3", how=f"server {pid}, now")
    assert scope.outside == (f"nccl 2.27.3 is not < 2.22.3 (server {pid}, now)",)
    assert nccl(tmp_path, {"server": pid}, scope="driver < 1")[0] is None, "nobody asked for it"


def test_processes_that_differ_are_named_and_leave_the_claim_in_scope(tmp_path, worker):
    new, old = (worker(installed(tmp_path / name, version)) for name, version in (("a", "2.27.3"), ("b", "2.21.5")))
    known, scope = nccl(tmp_path, {"server": new, "trainer": old})
    assert known == Known(value=None, how=f"processes differ: 2.27.3 in server {new}; 2.21.5 in trainer {old}")
    assert (scope.outside, len(scope.unknown)) == ((), 1)


def test_what_was_installed_after_a_process_began_is_not_what_it_runs(tmp_path, worker):
    library = installed(tmp_path / "venv", "2.27.3")
    pid = worker(library)
    folder = next(library.parents[3].glob("*.dist-info"))
    os.utime(folder, None)
    known, _ = nccl(tmp_path, {"server": pid})
    assert known == Known(value=None, how=f"it was installed anew after server {pid} began")
    os.utime(folder, (1_700_000_000, 1_700_000_000))
    library.unlink()
    assert nccl(tmp_path, {"server": pid})[0].value is None


def test_a_worker_that_is_gone_tells_nothing(tmp_path):
    assert nccl(tmp_path, {"server": 2**22 - 1})[0] is None


def test_services_that_must_hold_one_value_and_do_not_are_named_with_what_restarts_together(tmp_path):
    with ExitStack() as started:
        pids = []
        for value in ("0", "1"):
            process = started.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", "print('up', flush=True); input()"],
                    env={**os.environ, "NCCL_CUMEM_ENABLE": value}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                )
            )  # fmt: skip
            started.callback(process.kill)
            assert process.stdout.readline() == b"up\n"
            pids.append(process.pid)
        services = "".join(
            f'[services.{name}]\nrole = "engine"\nurl = "http://127.0.0.1:1"\npid = {pid}\nrestart_with = ["{other}"]\n'
            for name, pid, other in (("server", pids[0], "trainer"), ("trainer", pids[1], "server"))
        )
        knob = '[knobs.NCCL_CUMEM_ENABLE]\nservices = ["server", "trainer"]\n[knobs.LONE]\nservices = ["server"]\n'
        (tmp_path / "vindicate.toml").write_text(f'[stack]\nname = "s"\nentry = "server"\n{services}{knob}')
        stack = read_stack(tmp_path / "vindicate.toml")

        assert coherence(stack, "NCCL_CUMEM_ENABLE") == (
            "server, trainer must hold one value, and do not: server holds 0, trainer holds 1; restart together: server, trainer"
        )
        assert coherence(stack, "LONE") == "restart together: server, trainer"
        assert coherence(stack, "NOPE") == ""


def test_an_engine_is_asked_for_its_version_where_a_measurement_was_made_with_one(tmp_path):
    class Engine(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"version": "0.5.20"}')

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Engine) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (tmp_path / "vindicate.toml").write_text(
            f'[stack]\nname = "s"\n[services.e]\nrole = "engine"\nengine = "sglang"\nurl = "http://127.0.0.1:{server.server_port}"\n'
        )
        stack = read_stack(tmp_path / "vindicate.toml")
        gain = Effect(knob="K_K", a="1", b="2", level=8, metric="output_tok_per_s", gain_pct=5.0, grade="A", lo90_pct=4.0, hi90_pct=6.0)  # fmt: skip
        told = {}
        for version in ("0.5.9", "0.5.20"):
            with Ledger.scratch() as ledger:
                ledger.append(Evidence(id="E1", kind="experiment", text="x", effects=(gain,), fingerprint={"sglang": version}))  # fmt: skip
                book = seen_now(stack, Book.from_facts(ledger.facts()))
            (told[version],) = worth_of(book, "K_K", "2", "1", now=utc_now())
        server.shutdown()
    assert (told["0.5.9"].stale, told["0.5.9"].usable) == (("measured with sglang 0.5.9; now 0.5.20",), False)
    assert (told["0.5.20"].stale, told["0.5.20"].usable) == ((), True)


def test_what_clawback_sees_in_a_live_worker_restore_sees_too(tmp_path, worker, monkeypatch):
    pid = worker(installed(tmp_path / "venv", "2.27.3"))
    (tmp_path / "serve.sh").write_text("#!/bin/bash\nexport K_K=1\nexec python -m server\n")
    launcher = 'launcher = { kind = "script", file = "serve.sh" }'
    (tmp_path / "vindicate.toml").write_text(
        f'[stack]\nname = "s"\n[services.server]\nrole = "engine"\nurl = "http://127.0.0.1:1"\npid = {pid}\n{launcher}\n[knobs.K_K]\nservices = ["server"]\n'
    )
    with Ledger.open(tmp_path / ".vindicate" / "ledger.db", create=True) as ledger:
        change = Change(id="C1", kind="revert", knob="K_K", services=("server",), from_value="2", to_value="1")
        ground = Justification(change="C1", claims=("H1",))
        ledger.append_all(
            [
                Claim(id="H1", text="it hangs", scope="nccl < 2.22.3"),
                change,
                ground,
                ChangeStep(change="C1", state="done"),
            ]
        )
    monkeypatch.chdir(tmp_path)

    def told(*words):
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            cli._run(list(words), debug=False)
        return said.getvalue()

    assert f"out of scope: nccl 2.27.3 is not < 2.22.3 (server {pid}, now)" in told("clawback")
    assert "orphaned" in told("knob", "show", "K_K")
    assert "still holds" not in (said := told("restore", "C1", "--dry-run"))
    assert "the ground for restoring C1 is not enough: no measurement" in said
