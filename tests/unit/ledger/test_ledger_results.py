"""Result files of benchmark tools, as they write them → runs, arms and effects; what is missing or wrong is named with file and field."""

import json

import pytest

from vindicate.errors import MisuseError
from vindicate.ledger.arms import read_files
from vindicate.ledger.results import runs_in
from vindicate.ledger.table import Comparison

KNOB = "DECODE_TARGET_CTAS"
SAID = Comparison(knob=KNOB, a="256", b="512")


def aiperf(level, tokens, **more):
    return json.dumps(
        {
            "schema_version": "1.4",
            "request_count": {"unit": "requests", "avg": 500.0},
            "output_token_throughput": {"unit": "tokens/sec", "avg": tokens},
            "time_to_first_token": {"unit": "ms", "avg": 195.84, "p50": 175.05},
            "input_config": {"endpoint": {"streaming": True}, "loadgen": {"concurrency": level, "request_rate": None}},
            "start_time": "2026-05-12T10:00:00.123456",
            "was_cancelled": False,
            **more,
        }
    )


def guidellm(*levels, errored=0):
    return json.dumps(
        {
            "metadata": {"version": 1},
            "benchmarks": [
                {
                    "config": {"strategy": {"type_": "concurrent", "streams": level}},
                    "start_time": 1778580000.5,
                    "metrics": {
                        "request_totals": {"successful": 500, "errored": errored, "incomplete": 0, "total": 500},
                        "output_tokens_per_second": {"successful": {"mean": tokens, "percentiles": {"p50": 1.0}}},
                        "time_to_first_token_ms": {"successful": {"mean": 60.0}},
                    },
                }
                for level, tokens in levels
            ],
        }
    )


def vllm(level, tokens, **more):
    return json.dumps(
        {
            "date": "20260512-101500",
            "backend": "openai-chat",
            "model_id": "m",
            "tokenizer_id": "m",
            "num_prompts": 500,
            "request_rate": "inf",
            "max_concurrency": level,
            "duration": 3.0,
            "completed": 500,
            "output_throughput": tokens,
            "mean_ttft_ms": 66.0,
            "ttfts": [0.05] * 3,
            **more,
        }
    )


def sglang(level, tokens, **more):
    record = {
        "tag": None,
        "backend": "sglang-oai-chat",
        "dataset_name": "random-ids",
        "request_rate": float("inf"),  # written as Infinity, which is no JSON
        "max_concurrency": level,
        "server_info": {"tp_size": 4, "chunked_prefill_size": 8192},
        "completed": 500,
        "output_throughput": tokens,
        "mean_ttft_ms": 66.0,
        **more,
    }
    return json.dumps(record) + "\n"


def gains(read):
    (found,) = read
    (item,) = found.items
    return {(effect.metric, effect.level): effect.gain_pct for effect in item.effects}


def written(folder, **files):
    paths = []
    for name, text in files.items():
        path = folder / f"{name}.json"
        path.write_text(text)
        paths.append(path)
    return paths


TOOLS = {
    "aiperf": (aiperf(64, 1000.0), aiperf(64, 1128.0)),
    "guidellm": (guidellm((64, 1000.0)), guidellm((64, 1128.0))),
    "vllm bench serve": (vllm(64, 1000.0), vllm(64, 1128.0)),
    "sglang.bench_serving": (sglang(64, 1000.0), sglang(64, 1128.0)),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_two_files_of_one_tool_make_an_effect_of_grade_d(tool, tmp_path):
    old, new = TOOLS[tool]

    read = read_files(written(tmp_path, ctas256=old, ctas512=new), said=SAID, home=tmp_path)

    assert gains(read) == {("output_tok_per_s", 64): pytest.approx(12.8), ("ttft_ms", 64): 0.0}
    (item,) = read[0].items
    assert {effect.grade for effect in item.effects} == {"D"}
    assert (item.effects[0].a, item.effects[0].b, item.effects[0].value_a) == ("256", "512", 1000.0)
    assert item.source == "ctas256.json, ctas512.json"
    assert tool in item.group
    told = "\n".join(read[0].said)
    assert "guessed" in told
    assert "by its name" in told
    assert "fresh start" in told


def test_one_file_may_hold_several_levels(tmp_path):
    (tmp_path / "arm-256.jsonl").write_text(sglang(64, 1000.0) + sglang(80, 2000.0))
    (tmp_path / "arm-512.jsonl").write_text(sglang(64, 1128.0) + sglang(80, 2024.0) + sglang(96, 3000.0))

    read = read_files([tmp_path / "arm-256.jsonl", tmp_path / "arm-512.jsonl"], said=SAID)

    found = gains(read)
    assert found["output_tok_per_s", 64] == pytest.approx(12.8)
    assert found["output_tok_per_s", 80] == pytest.approx(1.2)
    assert ("output_tok_per_s", 96) not in found
    assert f"level 96 has no run with {KNOB}=256; left out" in "\n".join(read[0].said)


def test_what_a_file_says_of_the_server_is_believed_before_its_name(tmp_path):
    one, other = (
        sglang(64, tokens, server_info={"chunked_prefill_size": size})
        for tokens, size in ((100.0, 4096), (110.0, 8192))
    )
    files = written(tmp_path, new8192=one, old4096=other)

    read = read_files(files, said=Comparison(knob="--chunked-prefill-size", a="4096", b="8192"))

    assert gains(read)["output_tok_per_s", 64] == pytest.approx(10.0)
    assert "guessed" not in "\n".join(read[0].said)


def test_metadata_that_was_given_to_the_tool_names_the_arm(tmp_path):
    files = written(tmp_path, r1=vllm(64, 100.0, **{KNOB: "256"}), r2=vllm(64, 110.0, **{KNOB: "512"}))

    assert gains(read_files(files, said=SAID))["output_tok_per_s", 64] == pytest.approx(10.0)


def test_a_level_in_the_name_is_not_taken_for_the_value(tmp_path):
    files = written(tmp_path, c256_ctas512=aiperf(256, 110.0), c256_ctas256=aiperf(256, 100.0))

    assert gains(read_files(files, said=SAID))["output_tok_per_s", 256] == pytest.approx(10.0)


def test_a_run_of_unknown_arm_is_passed_over_and_says_so(tmp_path):
    files = written(tmp_path, a256=aiperf(64, 100.0), b512=aiperf(64, 110.0), other=aiperf(64, 999.0))

    (found,) = read_files(files, said=SAID)

    assert found.items[0].effects[0].gain_pct == pytest.approx(10.0)
    assert "other.json: neither the file nor its name says" in found.passed_over[0]


def test_without_a_knob_the_runs_are_shown_and_nothing_is_recorded(tmp_path):
    (found,) = read_files(written(tmp_path, a256=aiperf(64, 100.0)))

    assert found.items == ()
    assert "aiperf at 64: output_tok_per_s 100" in found.said[0]
    assert "--knob NAME=A..B" in found.passed_over[0]


def test_two_tools_are_never_compared_with_each_other(tmp_path):
    found = read_files(written(tmp_path, a256=aiperf(64, 100.0), b512=vllm(64, 110.0)), said=SAID)

    assert [item for read in found for item in read.items] == []


def test_several_runs_of_an_arm_are_averaged_and_that_is_said(tmp_path):
    files = written(tmp_path, r1_256=aiperf(64, 90.0), r2_256=aiperf(64, 110.0), r1_512=aiperf(64, 120.0))

    read = read_files(files, said=SAID)

    assert gains(read)["output_tok_per_s", 64] == pytest.approx(20.0)
    assert "means over 2 and 1 runs" in "\n".join(read[0].said)


def test_failed_and_broken_off_runs_are_named(tmp_path):
    files = written(
        tmp_path,
        a256=guidellm((64, 100.0), errored=4),
        b512=guidellm((64, 110.0)),
    )
    cut = written(tmp_path, c256=aiperf(64, 100.0, was_cancelled=True), d512=aiperf(64, 110.0))

    first, second = read_files([*files, *cut], said=SAID)

    assert "4 requests failed" in first.passed_over[0]
    assert "4 requests failed" in str(first.items[0].measured["notes"])
    assert "broken off" in second.passed_over[0]


def test_tokens_that_were_counted_and_not_delivered_are_named(tmp_path):
    cut = sglang(64, 110.0, total_output_tokens=12_800, total_output_tokens_retokenized=12_000)

    (found,) = read_files(written(tmp_path, a256=sglang(64, 100.0), b512=cut), said=SAID)

    assert "b512.json: 12800 output tokens are counted and the text holds 12000" in found.passed_over[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (vllm(64, "fast"), "$.output_throughput"),
        (vllm(None, 100.0), "max_concurrency gives no one number"),
        (vllm(64, 0.0), "output_tok_per_s is 0"),
        (vllm(64, float("nan")), "output_tok_per_s is nan"),
        (aiperf(64, 1.0, output_token_throughput={"unit": "x"}), "missing required field `avg`"),
        (aiperf(64, 1.0, input_config={"loadgen": {"request_rate": 4}}), "input_config.loadgen.concurrency"),
        (json.dumps({"benchmarks": [{"metrics": {}}]}), "$.benchmarks[0].metrics"),
        (sglang(64, 1.0) + sglang(64, "x"), "BAD.json:2: Expected `float`"),
    ],
)
def test_a_bad_field_is_named_with_its_file(text, said, tmp_path):
    file = tmp_path / "BAD.json"
    file.write_text(text)

    with pytest.raises(MisuseError) as caught:
        runs_in(file)

    assert "BAD.json" in caught.value.problem
    assert said in caught.value.problem


@pytest.mark.parametrize(
    "text", ["", "# Plan", "{", "[1]", '{"schema": "vindicate.load/1"}', '{"a": 1}', "{" * 100000, "1\n2\n"]
)
def test_other_files_are_left_to_the_other_readers(text, tmp_path):
    file = tmp_path / "FILE.json"
    file.write_text(text)

    assert runs_in(file) is None


def test_a_file_with_too_many_details_is_refused_at_once(tmp_path):
    file = tmp_path / "LARGE.json"
    with file.open("wb") as out:
        out.write(b'{"output_throughput": 1')
        out.truncate(64_000_001)

    with pytest.raises(MisuseError) as caught:
        runs_in(file)

    assert "without their details of every request" in str(caught.value.remedy)
