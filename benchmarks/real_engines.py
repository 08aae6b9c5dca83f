"""Is the verdict right on real engines? vLLM prefill and decode on CPU, KV over NIXL, behind the real vllm-router → right layers, of n.

    python benchmarks/real_engines.py [--runs 3] [--only NAME…] [--transcript FILE]

`make test-real` installs them (`.venv-real`, 4 GB) and starts a chain of 6 GB in about 90 s. The workers that are frozen or killed here keep
every health signal green: /health, the router's readiness, the gauges. --transcript writes what a person would see of the frozen one.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from importlib import import_module
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parent))
real_chains = import_module("real_chains")
Members, Scenario = real_chains.Members, real_chains.Scenario

ROOT = Path(__file__).parents[1]
REAL = Path(os.environ.get("VINDICATE_REAL", ROOT / ".venv-real")) / "bin"
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "OMP_NUM_THREADS": "1",
}
START_S = 300.0


@real_chains.members
def vllm_pair(chain: Members, frozen: str = "") -> str:
    """Start prefill and decode at once, the router in front; the worker process of service *frozen* is listed as `worker`."""
    model = chain.folder / "model"
    subprocess.run([REAL / "python", ROOT / "tests" / "real" / "tiny_model.py", model], check=True, capture_output=True)
    ports = {role: next(chain.ports) for role in ("prefill", "decode")}
    for core, (role, port) in enumerate(ports.items()):
        transfer = {
            "kv_connector": "NixlConnector",
            "kv_role": {"prefill": "kv_producer", "decode": "kv_consumer"}[role],
            "kv_buffer_device": "cpu",
        }
        command = [REAL / "python", "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "reference",
                   "--host", "127.0.0.1", "--port", port, "--max-model-len", 2048, "--max-num-seqs", 64, "--enforce-eager",
                   "--dtype", "float32", "--kv-transfer-config", json.dumps(transfer)]  # fmt: skip
        env = (
            os.environ
            | QUIET
            | {"VLLM_CPU_OMP_THREADS_BIND": str(core), "VLLM_NIXL_SIDE_CHANNEL_PORT": str(next(chain.ports))}
        )
        chain.start(role, port, command, env=env, role=role, engine="vllm")
    port, figures = next(chain.ports), next(chain.ports)
    urls = {role: f"http://127.0.0.1:{at}" for role, at in ports.items()}
    command = [REAL / "vllm-router", "--vllm-pd-disaggregation", "--kv-connector", "nixl", "--host", "127.0.0.1", "--port", port,
               "--prefill", urls["prefill"], "--decode", urls["decode"], "--policy", "round_robin", "--prometheus-host", "127.0.0.1",
               "--prometheus-port", figures, "--worker-startup-check-interval", 1, "--health-check-interval-secs", 5]  # fmt: skip
    said = {
        "role": "router",
        "engine": "vllm-router",
        "upstream": ["prefill", "decode"],
        "metrics": f"http://127.0.0.1:{figures}/metrics",
    }
    url = chain.start("router", port, command, **said)
    for at in (*urls.values(), url):
        real_chains.wait_for(at + "/health", START_S)
    real_chains.first_answer(url, "reference", patience_s=120)  # the first transfer takes its time
    if frozen:
        below = psutil.Process(chain.running[frozen].pid).children(recursive=True)
        chain.running["worker"] = next(process for process in below if "Worker" in "".join(process.cmdline()))
    return "router"


def stopped(role: str) -> dict[str, object]:
    """Whose worker is frozen, as a scenario's words."""
    return {
        "start": vllm_pair(frozen=role),
        "kill": "worker",
        "signal": signal.SIGSTOP,
        "clients": ("busy",) * 2,
        "settle_s": 15,
    }


SCENARIOS = (
    Scenario("vllm_busy", "none", clients=("busy",) * 5, start=vllm_pair(), settle_s=15),
    Scenario("vllm_clients_gone", "none", clients=("leave",), start=vllm_pair(), settle_s=3),
    Scenario("vllm_frozen_decode", "decode", "decode", "service.stopped", **stopped("decode")),
    Scenario("vllm_frozen_prefill", "prefill", "prefill", "service.stopped", **stopped("prefill")),
    Scenario(
        "vllm_killed_decode", "decode", "decode", "service.down", **(stopped("decode") | {"signal": signal.SIGKILL})
    ),
)


def transcript(file: Path) -> None:
    """Freeze the decode worker of a fresh chain under load; write the health signals and the diagnosis as a terminal shows them."""
    import tempfile

    scenario = next(s for s in SCENARIOS if s.name == "vllm_frozen_decode")
    with tempfile.TemporaryDirectory() as made, scenario.start(scenario, Path(made)) as (running, url, stack):
        client = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "diagnosis.py"), "--client", "busy", "--url", url]
        )
        try:
            time.sleep(scenario.settle_s)
            running["worker"].send_signal(signal.SIGSTOP)
            time.sleep(6)
            lines = []
            for name, at in [("router", url), *((s, u) for s, u in _urls(stack).items() if s != "router")]:
                with urllib.request.urlopen(at + "/health", timeout=5) as answer:
                    lines += [
                        f"$ curl -s -o /dev/null -w '%{{http_code}}\\n' {at}/health     # {name}",
                        str(answer.status),
                    ]
            seen = subprocess.run(
                [sys.executable, "-m", "vindicate", "diagnose", url],
                capture_output=True,
                text=True,
                check=False,
                cwd=made,
            )
            file.write_text("\n".join([*lines, f"$ vindicate diagnose {url}", seen.stdout]))
            print(file.read_text(), f"exit {seen.returncode}", sep="\n")
        finally:
            running["worker"].send_signal(signal.SIGCONT)
            client.kill()
            client.wait()


def _urls(stack: Path) -> dict[str, str]:
    import tomllib

    return {name: said["url"] for name, said in tomllib.loads(stack.read_text())["services"].items()}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--transcript"]:
        sys.exit(transcript(Path(sys.argv[2])))
    real_chains.SCENARIOS = SCENARIOS
    sys.exit(real_chains.main(runs=3, jobs=1))
