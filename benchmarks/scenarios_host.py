"""What a host or an administrator gives and takes away: descriptors, disk, a running process, a valid certificate. Needs root for two."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import diagnosis as bench
from diagnosis import Scenario
from scenarios_relay import FAKES, pair

TLS = Path(__file__).parents[1] / "tests" / "fixtures" / "tls"
STREAM = ("--itl", "0.05", "--tokens", "60")


@contextmanager
def on_a_full_disk(scenario: Scenario, folder: Path, *, settings: dict[str, Any], used: float) -> Iterator[bench.Chain]:
    """A relay that spools into a small disk of its own, of which *used* is taken (1: all) once the chain runs."""
    disk = folder / "disk"
    disk.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise TimeoutError(f"no disk of its own: root is needed ({made.stderr.strip()})")
    try:
        with pair(scenario, folder, settings=settings | {"spool": str(disk)}, engine=STREAM) as chain:
            room = os.statvfs(disk)
            (disk / "other").write_bytes(bytes(int(used * room.f_bavail * room.f_frsize)))
            yield chain
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@contextmanager
def frozen(scenario: Scenario, folder: Path, *, who: str) -> Iterator[bench.Chain]:
    """One service in a control group of its own, which is frozen once the chain runs, as `docker pause` does."""
    v2 = next(
        (p for p in map(Path, ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")) if (p / "cgroup.procs").exists()), None
    )
    group = (v2 or Path("/sys/fs/cgroup")) / f"bench-{os.getpid()}-{folder.name}"
    try:
        group.mkdir()
        with pair(scenario, folder, settings={}, engine=STREAM) as chain:
            (group / "cgroup.procs").write_text(str(chain[0][who].pid))
            (group / "cgroup.freeze").write_text("1")
            yield chain  # what is frozen can be killed
    except PermissionError as problem:
        raise TimeoutError(f"no control group of its own: root and cgroup v2 are needed ({problem})") from problem
    finally:
        if group.is_dir():
            group.rmdir()


@contextmanager
def behind_tls(scenario: Scenario, folder: Path, *, certificate: str) -> Iterator[bench.Chain]:
    """A relay that speaks TLS; its authority is one that this host trusts."""
    os.environ["SSL_CERT_FILE"] = str(TLS / "ca.pem")
    with pair(
        scenario, folder, settings={"tls": [str(TLS / certificate), str(TLS / "leaf.key")]}, engine=STREAM
    ) as chain:
        yield chain


@contextmanager
def dying(scenario: Scenario, folder: Path, *, life_s: float) -> Iterator[bench.Chain]:
    """A relay before an engine that lives so many seconds and is started again at once."""
    with pair(scenario, folder, settings={}, engine=STREAM) as (running, url, file):
        port = file.read_text().rpartition(":")[2].split('"')[0]
        running["engine"].kill()
        running["engine"].wait()
        again = f'while true; do "$0" "$1" --port {port} --lifetime {life_s} {" ".join(STREAM)}; sleep 0.2; done'
        loop = ["bash", "-c", again, bench.PY, str(FAKES / "engine.py")]
        running["engine"] = subprocess.Popen(
            loop, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        bench.wait_for_listener(int(port))
        yield running, url, file


SCENARIOS = (
    Scenario("files_all_open", "proxy", "proxy", "service.out_of_descriptors", clients=("busy",), settle_s=8,
             start=partial(pair, settings={"files": 64, "leaks": True}, engine=("--itl", "0.02", "--tokens", "4"))),
    Scenario("files_to_spare", "none", clients=("busy",), start=partial(pair, settings={"files": 64}, engine=STREAM)),
    Scenario("disk_full", "host", "proxy", "host.disk_full", clients=("busy",), start=partial(on_a_full_disk, settings={}, used=1.0)),
    Scenario("disk_nearly_full", "none", clients=("busy",), start=partial(on_a_full_disk, settings={}, used=0.6)),
    Scenario("engine_frozen", "engine", "engine", "service.stopped", clients=("hang",), settle_s=1, start=partial(frozen, who="engine")),
    Scenario("certificate_expired", "proxy", "proxy", "service.certificate_expired", clients=("busy",), start=partial(behind_tls, certificate="expired.pem")),
    Scenario("certificate_good", "none", clients=("busy",), start=partial(behind_tls, certificate="valid.pem")),
    Scenario("crash_loop", "engine", "engine", "service.crash_loop", clients=("busy",), more=("--window", "12s"), start=partial(dying, life_s=1.5)),
)  # fmt: skip
