"""What does one look at the sockets cost? Real connections, held by child processes → our look beside the bare kernel dump.

    python benchmarks/socket_account.py [--sockets 500 5000 40000] [--strangers N] [--repetitions 15]

Each row opens that many TCP sockets on this host (both ends of half as many loopback connections, IPv4 and IPv6), and takes
in turn: the *bare dump*, which asks the kernel for the same sockets and throws its answer away; *our look*, with everything
that a capture needs of it; and `ss -tinp`, where it is installed. With --strangers, so many sockets more belong to nobody
of the chain. Milliseconds are medians with the quartiles behind them; the ratio is the median of the pairs' ratios.
Nothing is asserted: what is claimed is the ratio, on the host where it is run.
"""

import argparse
import contextlib
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from vindicate.observe.account import SocketAccount
from vindicate.stack.http import OwnSockets
from vindicate.stack.sockets import has_sock_diag
from vindicate.wire.sockdiag import request

_HOLD = """
import resource, socket, sys
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
host, count = sys.argv[1], int(sys.argv[2])
family = socket.AF_INET6 if ":" in host else socket.AF_INET
listener = socket.create_server((host, 0), family=family, backlog=128)
held = []
for _ in range(count):
    client = socket.create_connection(listener.getsockname()[:2])
    held += [client, listener.accept()[0]]
    client.sendall(b"x" * 100)
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
"""
_NETLINK_SOCK_DIAG = 4
_MOST_PER_CHILD = 4000  # connections; two descriptors each


def main() -> int:
    """Print the table."""
    words = argparse.ArgumentParser(description="What one look at the sockets costs.")
    words.add_argument("--sockets", type=int, nargs="+", default=[500, 2000, 10000, 40000])
    words.add_argument("--strangers", type=int, default=0)
    words.add_argument("--repetitions", type=int, default=15)
    asked = words.parse_args()
    if not has_sock_diag():
        print("the kernel does not answer sock_diag here: nothing to measure")
        return 0
    print(
        f"{'sockets':>8} {'bare dump ms':>20} {'our look ms':>20} {'ratio':>18} {'first look ms':>14} {'ss -tinp ms':>20}"
    )
    for n_sockets in asked.sockets:
        with connections(n_sockets // 2) as (ports, pids), connections(asked.strangers // 2):
            print(measure(n_sockets, ports, pids, ports if asked.strangers else [], asked), flush=True)
    if shutil.which("ss") is None:
        print("ss not installed: its column is empty")
    return 0


@contextlib.contextmanager
def connections(count: int) -> Iterator[tuple[list[int], set[int]]]:
    """So many loopback connections, held by children: their ports and pids; as many as descriptors allow, or it fails."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_PER_CHILD if hard == resource.RLIM_INFINITY else min(_MOST_PER_CHILD, (hard - 32) // 2)
    children: list[subprocess.Popen[str]] = []
    try:
        while count > 0:
            host = ("127.0.0.1", "::1")[len(children) % 2 if socket.has_dualstack_ipv6() else 0]
            part = min(count, most)
            argv = [sys.executable, "-c", _HOLD, host, str(part)]
            children.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            count -= part
        yield [int(_line(child)) for child in children], {child.pid for child in children}
    finally:
        for child in children:
            child.communicate()


def _line(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    return child.stdout.readline()


def measure(n_sockets: int, ports: list[int], pids: set[int], wanted: list[int], asked: argparse.Namespace) -> str:
    """One row of the table; *wanted*: the ports that the bare dump is asked for."""
    ss, repetitions = shutil.which("ss"), asked.repetitions
    account = SocketAccount(ports, lambda: pids, own=OwnSockets())
    first_ms = timed(account.look)
    bare: list[float] = []
    ours: list[float] = []
    theirs: list[float] = []
    account.look()
    acts = [(bare, lambda: bare_dump(wanted)), (ours, account.look)]
    for turn in range(repetitions):
        for times, act in acts if turn % 2 else reversed(acts):
            times.append(timed(act))
        if ss is not None and turn < max(3, repetitions // 4):
            theirs.append(timed(lambda: run_ss(ss)))
    kept = len(account.connections())
    account.close()
    ratios = [mine / raw for mine, raw in zip(ours, bare, strict=True)]
    seen = "" if kept >= n_sockets else f"  (kept {kept})"
    return (
        f"{n_sockets:>8} {spread(bare):>20} {spread(ours):>20} {spread(ratios, 2):>18} {first_ms:>14.1f} "
        f"{spread(theirs) if theirs else '-':>20}{seen}"
    )


def bare_dump(ports: list[int]) -> None:
    """The TCP sockets that touch *ports*, or all, with their tcp_info, received and thrown away."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as link:
            link.send(request(family, ports=ports))
            last = b""
            while last[4:6] != b"\3\0":  # NLMSG_DONE comes in a message of its own
                last = link.recv(1 << 16)


def run_ss(ss: str) -> None:
    """The usual tool for the same question."""
    subprocess.run([ss, "-tinp"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def timed(act: Callable[[], None]) -> float:
    """Milliseconds that *act* took."""
    begun = time.perf_counter()
    act()
    return (time.perf_counter() - begun) * 1000


def spread(values: list[float], digits: int = 1) -> str:
    """The median, and the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


if __name__ == "__main__":
    sys.exit(main())
