"""A process → the addresses that its command line, its configuration file and its environment name, and what it is by its own words."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import psutil

__all__ = [
    "Named",
    "argv_of",
    "command_of",
    "is_engine",
    "is_model_server",
    "is_no_server",
    "named_by",
    "named_in",
    "named_in_environment",
]

_ADDRESS = re.compile(
    r"(https?://)?(?<![\w.])(\[[0-9a-fA-F:.]+\]|[A-Za-z][A-Za-z0-9_.-]*|\d+\.\d+\.\d+\.\d+):(\d{1,5})(?!\d)"
)
_UPSTREAM = re.compile(
    r"upstream|backend|worker|prefill|decode|engine|router|server|target|forward|reverse|pass|to$|api.?base|base.?url"
    r"|openai|llm|model|url|endpoint",
    re.IGNORECASE,
)
# What a service reports to, looks things up at or listens on: called perhaps, and no request goes there.
_NO_UPSTREAM = re.compile(
    r"trac|otel|otlp|telemetry|jaeger|zipkin|statsd|metric|prometheus|export|push|log|sentry|hook|callback|origin|referer"
    r"|redis|cache|etcd|nats|kafka|broker|amqp|sql|database|_db|db_|mongo|stor|s3|minio|mlflow|wandb|langfuse|vault|consul"
    r"|registr|discover|auth|oidc|jwks|issuer|audit|bootstrap|listen|bind|(http|https|all|no)_proxy",
    re.IGNORECASE,
)
_CONFIG = re.compile(r"-{1,2}(c|f|conf|config|config[-_]?file)", re.IGNORECASE)
_CONFIG_LIMIT = 1_000_000
_SERVES = re.compile(
    r"sglang|vllm|llama|litellm|trtllm|tensorrt|triton|lmdeploy|ollama|dynamo|aphrodite|mlc.?llm|text.generation|\bsmg\b"
    r"|vindicate|engine|\bllm|infer|--served-model-name|--model-path|--model(?![-\w])|--disaggregation-mode|--kv-transfer-config",
    re.IGNORECASE,
)
_NO_SERVER = re.compile(
    r"prometheus|grafana|otel|jaeger|zipkin|tempo|loki|telegraf|statsd|exporter|collector|fluent|vector|redis|valkey|memcache"
    r"|postgres|mysql|maria|mongo|clickhouse|kafka|zookeeper|rabbit|nats|etcd|consul|vault|minio|sshd|dnsmasq|named$",
    re.IGNORECASE,
)
_RELAY = re.compile(r"router|gateway|proxy|litellm|\bsmg\b|balanc|frontend", re.IGNORECASE)
_RUNNERS = re.compile(r"(python|pypy|node|java|ruby|perl|bash|sh|uv|env)[\d.]*$")


@dataclass(frozen=True, slots=True)
class Named:
    """An address that a process names; *by*: the option, file or variable. *upstream*: ``True`` by its name, ``False`` by its
    name something else, ``None`` where the name does not say."""  # noqa: D205, D209 the sentence is one

    host: str
    port: int
    by: str
    upstream: bool | None
    secure: bool = False


def argv_of(pid: int) -> list[str]:
    """Its command line, empty when it is gone; one that was rewritten as a title is cut into words again."""
    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return []
    return words[0].split() if len([word for word in words if word]) == 1 and " " in words[0] else words


def command_of(pids: Iterable[int]) -> str:
    """The command name of the first of *pids*, in letters that can stand in a name; `unknown` without one."""
    for pid in pids:
        try:
            name = psutil.Process(pid).name()
        except psutil.Error:
            name = "gone"
        return re.sub(r"[^A-Za-z0-9_.-]+", "-", name) or "unknown"
    return "unknown"


def is_model_server(pid: int) -> bool:
    """Whether its program or its options are those of something that serves models, or stands before one."""
    return not is_no_server(pid) and bool(_SERVES.search(_identity(argv_of(pid))))


def is_engine(pid: int) -> bool:
    """Whether it is a model server that computes by itself, and no router or proxy before one."""
    return is_model_server(pid) and not _RELAY.search(" ".join(word.rpartition("/")[2] for word in argv_of(pid)[:5]))


def is_no_server(pid: int) -> bool:
    """Whether its program is a database, a queue, telemetry or the like."""
    return bool(_NO_SERVER.search(" ".join(_program(argv_of(pid)))))


def _program(argv: list[str]) -> list[str]:
    """What runs: the program, and after an interpreter its module or script; no folder names."""
    words = [word.rpartition("/")[2] for word in argv]
    if not words:
        return []
    if not _RUNNERS.fullmatch(words[0]):
        return words[:1] if not words[0].endswith(":") else words[:4]
    rest = [word for word in words[1:] if not word.startswith("-")]
    return rest[:1]


def _identity(argv: list[str]) -> str:
    return " ".join([*_program(argv), *(word.partition("=")[0] for word in argv if word.startswith("-"))])


def named_by(pid: int) -> list[Named]:
    """What its command line names, and the configuration file that it names."""
    argv = argv_of(pid)
    found = _published(argv)
    for option, text in _options(argv):
        found += _addresses(option, text, plain=bool(option))
        if _CONFIG.fullmatch(option) and text != option:
            found += _in_file(pid, text)
    return found


def _published(argv: list[str]) -> list[Named]:
    """Where docker's own forwarder sends what comes to a published port (`docker-proxy -container-ip … -container-port …`)."""
    if not argv or argv[0].rpartition("/")[2] != "docker-proxy":
        return []
    said = dict(pairwise(argv))
    host, port = said.get("-container-ip", ""), said.get("-container-port", "")
    return [Named(host, int(port), "-container-ip", upstream=True)] if host and port.isdigit() else []


def named_in(urls: Iterable[str], by: str) -> list[Named]:
    """Addresses that *by* says are upstreams."""
    return [replace(one, by=by, upstream=True) for url in urls for one in _addresses("", url, plain=False)]


def named_in_environment(pid: int) -> list[Named]:
    """What its environment names as an upstream; read for addresses only, and never kept."""
    try:
        variables = psutil.Process(pid).environ()
    except psutil.Error:
        return []
    found = [one for name, value in variables.items() if "://" in value for one in _addresses(name, value, plain=False)]
    return [one for one in found if one.upstream]


def _addresses(name: str, text: str, *, plain: bool) -> list[Named]:
    """The addresses in *text*; with *plain* HOST:PORT counts too, where the name says that it is an upstream."""
    upstream = False if _NO_UPSTREAM.search(name) else True if not name or _UPSTREAM.search(name) else None
    return [
        Named(host, int(port), name, upstream, secure=scheme == "https://")
        for scheme, host, port in _ADDRESS.findall(text)
        if 0 < int(port) < 65536 and (scheme or (plain and upstream))
    ]


def _options(argv: Iterable[str]) -> list[tuple[str, str]]:
    """Every word of a command line with the option that it belongs to: the last one before it, or its own part before ``=``."""
    found, option = [], ""
    for word in argv:
        name, equals, value = word.partition("=")
        if word.startswith("-"):
            option = name
        found.append((name, value) if equals and "://" not in name else (option, word))
    return found


def _in_file(pid: int, name: str) -> list[Named]:
    """Upstreams in a configuration file (nginx, HAProxy, Caddy, LiteLLM …), line by line: what stands before an address names it."""
    try:
        path = Path(psutil.Process(pid).cwd(), name)
        if not path.is_file() or path.stat().st_size > _CONFIG_LIMIT:
            return []
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, psutil.Error):
        return []
    found = []
    for text in (part for line in lines for part in re.split(r"[;{}]", line.partition("#")[0])):
        match = _ADDRESS.search(text)
        if match is not None:
            before = text[: match.start()].strip()
            found += [one for one in _addresses(before or "-", text, plain=True) if one.upstream]
    return found
