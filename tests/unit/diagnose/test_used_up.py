"""What the host gives and takes: it names a fault that shows, slows without accusing, and is no fault where nothing fails."""

from dataclasses import replace

import pytest

from fakes.captures import PIDS, Scenery
from vindicate.diagnose.judge import judge
from vindicate.record.observation import ONLY_ITS_DATE, HostFacts, Listener, ProcessFacts, ProcessSample


def process(name, *, fds=10, limit=1024, ended=False, **more):
    samples = tuple(ProcessSample(t_s=t, state="S", cpu_s=1.0, n_threads=1, n_fds=fds) for t in (0.0, 3.0, 6.0, 9.0))
    return ProcessFacts(
        pid=PIDS[name], ppid=1, name=name, argv=(), started_at="", fd_limit=limit, samples=samples, ended=ended, **more
    )


def busy():
    scene = Scenery().streaming(4, "client", "proxy").streaming(4, "proxy", "router").streaming(4, "router", "decode")
    return (
        scene.figures("prefill").figures("decode", running=4, tokens=50).probe("proxy").probe("router").probe("decode")
    )


def shut():
    scene = Scenery().idle_engines().silent(4, "client", "proxy").health("proxy", None, "timeout (no_headers)")
    scene.accept["proxy"] = (3, 5, 5, 6)
    return scene.probe("proxy", "no_headers").probe("router").probe("decode")


def judged(scene, *processes, **changes):
    scene.processes += processes
    return judge(scene.capture(**changes))


@pytest.mark.parametrize("fds", [64, 40])
def test_names_descriptors_only_where_all_are_open(fds):
    diagnosis = judged(shut(), process("proxy", fds=fds, limit=64))
    assert (diagnosis.status, diagnosis.service) == ("fault", "proxy")
    assert (diagnosis.mechanism == "service.out_of_descriptors") is (fds == 64)


@pytest.mark.parametrize(
    "used_up", [{"fds": 64, "limit": 64}, {"full_disk": "/var"}, {"throttled_pct": 90.0}], ids=["files", "disk", "cpu"]
)
def test_accuses_nobody_for_what_is_used_up_while_requests_pass(used_up):
    diagnosis = judged(busy(), process("proxy", **used_up), host_facts=HostFacts(cpu_pressure_pct=90.0, oom_kills=1))
    assert diagnosis.status == "healthy"


def test_says_how_much_a_quota_and_a_contended_host_hold_back():
    diagnosis = judged(busy(), process("decode", throttled_pct=81.0), host_facts=HostFacts(cpu_pressure_pct=90.0))
    said = [f.text for f in diagnosis.findings if f.kind == "host"]
    assert any("decode" in text and "81 %" in text for text in said)
    assert any("90 %" in text for text in said)


def test_a_full_disk_is_of_the_host_and_convicts_only_who_fails_there():
    scene = Scenery().idle_engines().probe("proxy", "http_500").probe("router").probe("decode")
    scene.links(4, "client", "proxy", {1.0: (500, 0), 1.25: (500, 120), 2.0: (1000, 120), 2.25: (1000, 240)})
    diagnosis = judged(scene, process("proxy", full_disk="/spool"), process("router", full_disk="/spool"))
    assert (diagnosis.layer, diagnosis.service, diagnosis.mechanism) == ("host", "proxy", "host.disk_full")


@pytest.mark.parametrize(
    ("kills", "mechanism"), [(1, "service.out_of_memory"), (0, "service.down"), (None, "service.down")]
)
def test_names_the_kernel_only_where_it_killed_while_we_looked(kills, mechanism):
    scene = Scenery().dead("decode").figures("prefill").probe("proxy", "http_502").probe("decode", "refused")
    capture = scene.capture(host_facts=HostFacts(oom_kills=kills), processes=(process("decode", ended=True),))
    seen = (replace(s, pids=(PIDS["decode"],)) if s.name == "decode" else s for s in capture.services)
    diagnosis = judge(replace(capture, services=tuple(seen)))
    assert (diagnosis.status, diagnosis.service, diagnosis.mechanism) == ("fault", "decode", mechanism)


@pytest.mark.parametrize(("lives", "status"), [(4, "fault"), (2, "healthy")])
def test_three_lives_in_a_window_are_a_crash_loop_and_a_restart_is_none(lives, status):
    scene = busy()
    scene.listening.discard("decode")
    capture = scene.capture()
    where = next(s.address for s in capture.services if s.name == "decode")
    one_by_one = tuple(Listener(local=where, pids=(7000 + n,), backlog=1, waiting=(0,) * 8) for n in range(lives))
    services = tuple(replace(s, pids=(7000,)) if s.name == "decode" else s for s in capture.services)
    ended = replace(process("decode", ended=True), pid=7000)
    diagnosis = judge(
        replace(capture, listeners=capture.listeners + one_by_one, n_looks=41, services=services, processes=(ended,))
    )
    assert diagnosis.status == status
    assert diagnosis.mechanism == ("service.crash_loop" if status == "fault" else None)


def test_workers_that_share_a_port_side_by_side_are_no_crash_loop():
    capture = busy().capture()
    where = next(s.address for s in capture.services if s.name == "decode")
    workers = tuple(Listener(local=where, pids=(7000 + n,), backlog=1, waiting=(0,) * 41) for n in range(4))
    assert judge(replace(capture, listeners=capture.listeners + workers, n_looks=41)).status == "healthy"


@pytest.mark.parametrize(
    ("detail", "status"),
    [
        ("certificate has expired" + ONLY_ITS_DATE, "fault"),
        ("certificate has expired", "undetermined"),
        ("self-signed certificate", "undetermined"),
    ],
)
def test_convicts_a_certificate_only_when_nothing_but_its_date_is_wrong(detail, status):
    scene = Scenery().idle_engines().probe("proxy", "certificate").probe("router").probe("decode")
    scene.probes[0] = replace(scene.probes[0], detail=detail, status=None, n_events=0, n_tokens=0, terminated=False)
    diagnosis = judge(scene.capture())
    assert diagnosis.status == status, diagnosis.summary
    assert any("certificate" in text for text in (diagnosis.summary, *diagnosis.next))
