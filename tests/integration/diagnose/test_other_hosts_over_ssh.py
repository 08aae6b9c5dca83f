"""A chain of two hosts, the second one a network namespace that only `ssh` reaches: it is looked at from there, by a script that is sent."""

import ast
import importlib
import signal
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path

import pytest

from vindicate.diagnose.join import join_captures
from vindicate.diagnose.judge import judge
from vindicate.errors import MisuseError
from vindicate.observe.afar import LATE_S, Afar, seen_from_afar
from vindicate.observe.record import record_capture
from vindicate.stack.file import load_stack

# As ssh: options, a destination, and what the shell there is to run.
SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
box=$1; shift
echo $$ > "{folder}/pid"
{first}
exec {other_clock} ip netns exec "$box" sh -c "exec $*"
"""


@pytest.fixture(scope="module")
def bench():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
        yield importlib.import_module("diagnosis"), importlib.import_module("scenarios_container")
    for name in ("diagnosis", "scenarios_container", "callers"):
        sys.modules.pop(name, None)


@pytest.fixture
def apart(monkeypatch):
    """This host sees nothing of other network namespaces, as if they were other hosts."""
    monkeypatch.setattr("vindicate.stack.process.process_at", lambda _: None)
    monkeypatch.setattr("vindicate.observe.record.process_at", lambda _: None)
    monkeypatch.setattr("vindicate.observe.inside.foreign_namespaces", lambda _: {})


def ssh_in(folder, *, first="", other_clock=""):
    path = folder / "ssh"
    path.write_text(SSH.format(folder=folder, first=first, other_clock=other_clock))
    path.chmod(0o755)
    return str(path)


def diagnosed(bench, name, folder, ssh, window_s=8.0):
    """The verdict on a scenario, with and without the sight of the other host."""
    one = next(one for one in bench[1].SCENARIOS if one.name == name)
    try:
        started = one.start(one, folder)
        running, url, file = started.__enter__()
    except TimeoutError as missing:
        pytest.skip(str(missing))
    clients = []
    try:
        for kind in one.clients:
            clients.append(subprocess.Popen([sys.executable, bench[0].__file__, "--client", kind, "--url", url]))
            if kind == "leave":
                clients[-1].wait(60)
        time.sleep(one.settle_s)
        box = running["engine"].args[3]
        far = Afar(box, ssh=ssh, window_s=window_s, ports=[s.port for s in load_stack(str(file)).services.values()])
        far.start()
        own = record_capture(load_stack(str(file)), window_s=window_s)
        far.wait(time.monotonic() + LATE_S)
        both = join_captures(seen_from_afar(own, [far]))
        return judge(own), judge(both), both, far
    finally:
        for client in clients:
            client.kill()
            client.wait()
        started.__exit__(None, None, None)


@pytest.mark.timeout(120)
def test_an_engine_that_stalls_over_there_is_convicted_from_both_ends(bench, apart, tmp_path):
    alone, verdict, both, far = diagnosed(bench, "boxed_engine_stalls", tmp_path, ssh_in(tmp_path))
    assert far.problem == ""
    assert (verdict.status, verdict.service, verdict.mechanism) == ("fault", "engine", "engine.stall_mid_stream")
    assert verdict.confidence > alone.confidence
    engine = next(one for one in both.services if one.name == "engine")
    assert engine.pids
    assert not engine.remote
    assert not any("another host" in line for line in verdict.blind), verdict.blind
    assert both.host.endswith(f" + {far.name}")
    assert any(len(p.samples) > 3 and p.pid in engine.pids for p in both.processes)


@pytest.mark.timeout(120)
def test_and_is_innocent_where_the_proxy_here_starves_whatever_its_clock_says(bench, apart, tmp_path):
    shift = "unshare --time --monotonic 50000 --boottime 50000"
    if subprocess.run([*shift.split(), "true"], capture_output=True, check=False).returncode:
        pytest.skip("no time namespace here")
    ssh = ssh_in(tmp_path, other_clock=shift)
    _, verdict, both, _ = diagnosed(bench, "boxed_starved", tmp_path, ssh)
    assert (verdict.status, verdict.service, verdict.mechanism) == ("fault", "proxy", "proxy.connector_starvation")
    times = [look.t_s for c in both.connections if c.id.startswith("h1:") for look in c.samples]
    assert times
    assert -0.5 <= min(times) <= max(times) <= 9.0


FAILS = {
    "refused": ("echo 'Permission denied (publickey).' >&2; exit 255", "Permission denied"),
    "no python": ("echo 'sh: python3: not found' >&2; exit 127", "python3: not found"),
    "silent": ("exec sleep 60", "no answer in time"),
    "talks nonsense": ("echo 'Welcome!'; echo '[1]'; echo '{}'; echo '{\"t\": 1}'; exit 0", "no answer in time"),
    "no namespace": ("", "Cannot open network namespace"),
}


@pytest.mark.parametrize("how", FAILS)
def test_a_host_that_cannot_be_looked_at_is_said_with_what_to_try_and_costs_little(tmp_path, how):
    first, why = FAILS[how]
    far = Afar("nobody@elsewhere", ssh=ssh_in(tmp_path, first=first), window_s=0.5, ports=[1])
    far.start()
    began = time.monotonic()
    far.wait(began + 1.0)
    assert time.monotonic() - began < 4.0
    own = _empty_capture()
    (alone,) = seen_from_afar(own, [far])
    (line,) = alone.blind
    assert "elsewhere could not be looked at" in line
    assert why in line
    assert "python3 -V" in line


def test_the_script_that_is_sent_is_python_3_6_and_needs_the_standard_library_alone():
    tree = ast.parse(resources.files("vindicate.observe").joinpath("sampler.py").read_text(), feature_version=(3, 6))
    named = {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    assert named <= sys.stdlib_module_names
    assert not any(isinstance(node, ast.ImportFrom) for node in ast.walk(tree))


@pytest.mark.parametrize("destination", ["-oProxyCommand=x", "", "a b"])
def test_what_is_no_destination_is_refused(destination):
    with pytest.raises(MisuseError, match="no ssh destination"):
        Afar(destination, ssh="ssh", window_s=1.0, ports=[])


def test_an_ssh_that_is_not_there_is_named():
    with pytest.raises(MisuseError, match="no-such-ssh"):
        Afar("x", ssh="no-such-ssh", window_s=1.0, ports=[]).start()


def test_this_host_itself_is_not_looked_at_twice(tmp_path):
    far = Afar("x", ssh=ssh_in(tmp_path, first='exec sh -c "exec $*"'), window_s=0.5, ports=[1])
    far.start()
    far.wait(time.monotonic() + 10.0)
    (alone,) = seen_from_afar(_empty_capture(), [far])
    assert alone.blind == ("x is this host itself: it was seen from here already",)


def test_interrupted_it_leaves_nothing_running_over_there(tmp_path):
    ssh = ssh_in(tmp_path, first='exec sh -c "exec $*"')  # "there" is here
    command = [sys.executable, "-m", "vindicate", "diagnose", "http://127.0.0.1:9", "--host", "x", "--ssh", ssh]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path) as process:
        pid = _when(lambda: int((tmp_path / "pid").read_text()))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    _when(lambda: not Path(f"/proc/{pid}").exists() or 1 / 0)


def test_a_recording_is_not_looked_at_from_elsewhere(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    done = subprocess.run(
        [sys.executable, "-m", "vindicate", "diagnose", "--replay", "a.json", "--host", "x"],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "--host" in done.stderr


def _when(ask):
    """What *ask* answers once it no longer fails."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return ask()
        except (OSError, ValueError, ZeroDivisionError):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def _empty_capture():
    from fakes.captures import Scenery

    return Scenery().capture()
