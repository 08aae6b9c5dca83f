"""Result files of aiperf, guidellm, vLLM's and SGLang's benchmark → the runs in them: how many at once, and the figures; bad fields are named."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from vindicate.clock import iso, parse_time
from vindicate.errors import MisuseError
from vindicate.units import format_bytes

__all__ = ["Run", "runs_in"]

_MAX_BYTES = 64_000_000
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One load at one level.

    Attributes:
        tool: Who measured; figures of two tools are not comparable, for one name means several quantities.
        figures: Metric → value, such as ``output_tok_per_s``.
        told: What the file itself says of the server's settings and of the run: tags, metadata, the server's own arguments.
        warnings: Why the figures are less than they seem: requests that failed, a run that was broken off.
    """

    file: Path
    where: str
    tool: str
    level: int
    figures: dict[str, float]
    measured_at: str
    told: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class _Mean(msgspec.Struct):
    mean: float


class _Average(msgspec.Struct):
    avg: float


class _Successful(msgspec.Struct):
    successful: _Mean


class _Totals(msgspec.Struct):
    errored: int = 0
    incomplete: int = 0


class _GuideMetrics(msgspec.Struct):
    output_tokens_per_second: _Successful
    time_to_first_token_ms: _Successful | None = None
    request_totals: _Totals | None = None


class _GuideBenchmark(msgspec.Struct):
    metrics: _GuideMetrics
    config: dict[str, Any] = {}
    args: dict[str, Any] = {}
    start_time: float | None = None


class _Guide(msgspec.Struct):
    benchmarks: list[_GuideBenchmark]


class _Aiperf(msgspec.Struct):
    output_token_throughput: _Average
    input_config: dict[str, Any]
    time_to_first_token: _Average | None = None
    error_request_count: _Average | None = None
    start_time: str | None = None
    was_cancelled: bool = False
    is_complete: bool = True


class _Serving(msgspec.Struct):
    """A line of `sglang.bench_serving`, and the whole file of `vllm bench serve`."""

    output_throughput: float
    max_concurrency: int | None
    completed: int
    num_prompts: int | None = None
    failed: int | None = None
    mean_ttft_ms: float | None = None
    total_output_tokens: int | None = None
    total_output_tokens_retokenized: int | None = None
    date: str | None = None


def runs_in(path: Path) -> list[Run] | None:
    """The runs that a result file holds; ``None`` when it is no file of these tools, by its content.

    Raises:
        MisuseError: It is one, and too large, or a field of it is missing or of the wrong kind.
    """
    if path.suffix.lower() in {".md", ".markdown"}:
        return None
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            content = file.read(_MAX_BYTES + 1)
    except OSError:
        return None  # the general reader says why
    first = content.lstrip()[:1]
    if first != b"{":
        return None
    if size > _MAX_BYTES:
        raise MisuseError(
            f"{path} has {format_bytes(size)}, and up to {format_bytes(_MAX_BYTES)} are read",
            remedy="write the results without their details of every request",
        )
    documents = _documents(content)
    tool = _tool(documents[0]) if documents else None
    if tool is None:
        return None
    if tool == "guidellm":
        return list(_guide_runs(path, _as(_Guide, documents[0], str(path))))
    if tool == "aiperf":
        return [_aiperf_run(path, _as(_Aiperf, documents[0], str(path)))]
    wheres = [str(path)] if len(documents) == 1 else [f"{path}:{line}" for line in range(1, len(documents) + 1)]
    return [_serving_run(path, document, tool, where) for document, where in zip(documents, wheres, strict=True)]


def _documents(content: bytes) -> list[Any]:
    """The document of a file, or those of its lines; none when it is no JSON. ``Infinity``, as these tools write it, is read."""
    try:
        return [json.loads(content)]
    except (ValueError, RecursionError):
        pass
    try:
        return [json.loads(line) if line.strip() else {} for line in content.rstrip().splitlines()]
    except (ValueError, RecursionError):
        return []


def _tool(document: Any) -> str | None:
    """Whose file it is, by the keys of its first document."""
    if not isinstance(document, dict) or "schema" in document:
        return None
    if isinstance(document.get("benchmarks"), list):
        return "guidellm"
    if "output_token_throughput" in document and "input_config" in document:
        return "aiperf"
    if "output_throughput" in document:
        return "vllm bench serve" if "tokenizer_id" in document or "model_id" in document else "sglang.bench_serving"
    return None


def _as(kind: type[_T], document: Any, where: str) -> _T:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise MisuseError(f"{where}: {error}", remedy="give the file as the tool wrote it, or leave it out") from error


def _guide_runs(path: Path, data: _Guide) -> Iterator[Run]:
    for number, bench in enumerate(data.benchmarks):
        where = f"{path}: $.benchmarks[{number}]"
        totals = bench.metrics.request_totals or _Totals()
        figures = {"output_tok_per_s": bench.metrics.output_tokens_per_second.successful.mean}
        if bench.metrics.time_to_first_token_ms:
            figures["ttft_ms"] = bench.metrics.time_to_first_token_ms.successful.mean
        yield Run(
            file=path,
            where=where,
            tool="guidellm",
            level=_level(
                where,
                _under("streams", [_part(data, "strategy") for data in (bench.config, bench.args)]),
                "strategy.streams",
            ),
            figures=_checked(where, figures),
            measured_at=iso(datetime.fromtimestamp(bench.start_time, UTC)) if bench.start_time else _written(path),
            warnings=_failures(where, totals.errored + totals.incomplete),
        )


def _aiperf_run(path: Path, data: _Aiperf) -> Run:
    figures = {"output_tok_per_s": data.output_token_throughput.avg}
    if data.time_to_first_token:
        figures["ttft_ms"] = data.time_to_first_token.avg
    broken = (
        (f"{path}: the run was broken off; its stalled requests are counted nowhere",)
        if data.was_cancelled or not data.is_complete
        else ()
    )
    return Run(
        file=path,
        where=str(path),
        tool="aiperf",
        level=_level(
            str(path), _under("concurrency", _part(data.input_config, "loadgen")), "input_config.loadgen.concurrency"
        ),
        figures=_checked(str(path), figures),
        measured_at=_moment(data.start_time) or _written(path),
        warnings=(*broken, *_failures(str(path), int(data.error_request_count.avg) if data.error_request_count else 0)),
    )


def _serving_run(path: Path, document: Any, tool: str, where: str) -> Run:
    data = _as(_Serving, document, where)
    info = document.get("server_info")
    told = {
        str(key): str(value)
        for key, value in {**document, **(info if isinstance(info, dict) else {})}.items()
        if isinstance(value, str | int | float)
    }
    figures = {"output_tok_per_s": data.output_throughput}
    if data.mean_ttft_ms is not None:
        figures["ttft_ms"] = data.mean_ttft_ms
    failed = data.failed if data.failed is not None else max((data.num_prompts or 0) - data.completed, 0)
    return Run(
        file=path,
        where=where,
        tool=tool,
        level=_level(where, {data.max_concurrency} - {None}, "max_concurrency"),
        figures=_checked(where, figures),
        measured_at=_moment(data.date) or _written(path),
        told=told,
        warnings=(*_failures(where, failed), *_credited(where, data)),
    )


def _part(data: dict[str, Any], key: str) -> object:
    """The part that says how the load was made; all of it, where there is none of that name."""
    return data.get(key) or data


def _under(key: str, data: object) -> set[object]:
    """Every value that stands under *key* somewhere in *data*; where it stands has moved between versions."""
    if isinstance(data, dict):
        here = {data[key]} - {None} if isinstance(data.get(key), int | str) else set()
        return here.union(*(_under(key, value) for value in data.values()))
    return set[object]().union(*(_under(key, value) for value in data)) if isinstance(data, list) else set()


def _level(where: str, found: set[Any], name: str) -> int:
    if len(found) == 1 and isinstance(level := found.pop(), int) and not isinstance(level, bool) and level > 0:
        return level
    raise MisuseError(
        f"{where}: {name} gives no one number of requests at a time",
        remedy="give runs at a fixed concurrency, one for each level",
    )


def _checked(where: str, figures: dict[str, float]) -> dict[str, float]:
    for name, value in figures.items():
        if not math.isfinite(value) or value < 0 or (value == 0 and name == "output_tok_per_s"):
            raise MisuseError(f"{where}: {name} is {value:g}", remedy="leave this run out, and measure it again")
    return figures


def _failures(where: str, failed: int) -> tuple[str, ...]:
    return (f"{where}: {failed} requests failed or did not end, and the figures leave them out",) if failed else ()


def _credited(where: str, data: _Serving) -> tuple[str, ...]:
    """Tokens that were counted and do not stand in the text: a stream cut short is credited with the length asked for."""
    counted, held = data.total_output_tokens, data.total_output_tokens_retokenized
    if counted is None or held is None or held >= counted * 0.95:
        return ()
    return (f"{where}: {counted} output tokens are counted and the text holds {held}; streams may have been cut short",)


def _moment(text: str | None) -> str | None:
    """The time that a file gives, in any of the tools' ways of writing it; without a zone it is this machine's."""
    if not text:
        return None
    try:
        return iso(datetime.strptime(text, "%Y%m%d-%H%M%S").astimezone(UTC))
    except ValueError:
        pass
    try:
        return parse_time(text)
    except MisuseError:
        return None


def _written(path: Path) -> str:
    return iso(datetime.fromtimestamp(path.stat().st_mtime, UTC))
