"""Documents in different hands, and what each of them yields: what is recorded, what is said to be guessed, what is passed over."""

import time
from pathlib import Path

import pytest

from vindicate.errors import MisuseError
from vindicate.ledger.importing import read_evidence

DOCUMENTS = Path(__file__).parents[2] / "fixtures" / "documents"
CTAS = "DECODE_TARGET_CTAS"
TOKENS = "output_tok_per_s"
ORDER = "since the text does not say which came first"

# document → the comparisons it yields (knob, old, new, metric, grade, gain per level), what is said, what is passed over
YIELDS = {
    "bullets": ([(CTAS, "256", "512", TOKENS, "D", {64: 12.8, 80: 1.2, 96: 5.7})], (), ()),
    "caption_below": ([(CTAS, "256", "512", TOKENS, "D", {64: 12.8, 96: 5.7})], (), ()),
    "code_fences": ([], (), ()),
    "latency_first": ([(CTAS, "256", "512", "ttft_ms", "D", {64: -15.0, 96: 10.0})], (), ()),
    "long_form": (
        [
            (CTAS, "256", "512", TOKENS, "D", {64: 12.8, 96: 5.7}),
            (CTAS, "256", "512", "ttft_ms", "D", {64: -9.5, 96: 2.5}),
        ],
        (ORDER,),
        (),
    ),
    "loose_words": (
        [(CTAS, "4", "8", TOKENS, "D", {64: 12.8})],
        ("guessed: 4 and 8 are values of DECODE_TARGET_CTAS, from the words 'In March we moved from 4 to 8 nodes.'",),
        (),
    ),
    "metrics_down": (
        [
            (CTAS, "256", "512", TOKENS, "D", {64: 12.8, 96: 5.7}),
            (CTAS, "256", "512", "ttft_ms", "D", {64: -5.0, 96: 5.0}),
        ],
        (),
        (),
    ),
    "not_a_gain": ([], (), ("no gain and no pair of figures",)),
    "plus_minus": ([(CTAS, "256", "512", TOKENS, "D", {64: 12.8, 96: 5.7})], (), ()),
    "ragged": ([], (), ("its head has 4 cells and the line under it 3",)),
    "release_report": ([("VLLM_MAX_PARTITIONS", "8", "16", TOKENS, "D", {48: 7.0, 96: 1.0})], (), ()),
    "right_to_left": ([(CTAS, "256", "512", TOKENS, "D", {64: 12.8, 96: 5.7})], (), ()),
    "something_else": ([], (), ("which two values", "about something else", "which two values")),
    "speedups": (
        [(CTAS, "256", "512", TOKENS, "D", {64: 12.8, 80: 1.2, 96: 5.7})],
        ("guessed: the figures are output tokens per second",),
        (),
    ),
    "spread_95": (
        [(CTAS, "256", "512", TOKENS, "D", {64: 12.8, 96: 5.7})],
        ("an interval of 95 %; passed over", "'± 3.1' after the gain is a spread of unknown meaning"),
        (),
    ),
    "spread_hand": (
        [(CTAS, "256", "512", TOKENS, "C", {64: 12.8, 80: 1.2, 96: 5.7})],
        ("90 % interval -1.6 … +4.1 %", "the text says '12 blocks'"),
        (),
    ),
    "story_plain": (
        [("SGLANG_SM120_MMA_TARGET_CTAS", "256", "512", TOKENS, "D", {64: 12.8, 80: 1.2, 96: 5.7})],
        (),
        (),
    ),
    "switch": ([("ENABLE_OVERLAP_SCHEDULE", "off", "on", TOKENS, "D", {32: 5.0, 64: 10.0})], (), ()),
    "three_arms": ([], (), ("say so with --knob DECODE_TARGET_CTAS=A..B",)),
    "two_knobs": (
        [
            ("NCCL_NTHREADS", "256", "512", TOKENS, "D", {8: 2.5, 16: 5.0}),
            ("CUDA_GRAPH_MAX_BS", "160", "256", TOKENS, "D", {8: 0.0, 16: -5.0}),
        ],
        (),
        ("about something else",),
    ),
    "vs_order": ([(CTAS, "256", "512", TOKENS, "D", {64: 12.8})], (ORDER,), ()),
    "weekly_notes": (
        [("--chunked-prefill-size", "4096", "8192", TOKENS, "C", {16: 2.3, 32: 3.0, 64: 8.0})],
        ("the text says 'three fresh starts'",),
        ("about something else",),
    ),
    "wiki_export": ([("KV_SPLIT_TARGET", "128", "256", TOKENS, "D", {32: 10.0})], (), ("HTML",)),
}


def compared(items):
    """What was understood, one entry for each knob, pair of values and metric."""
    found = {}
    for effect in (effect for item in items for effect in item.effects):
        key = (effect.knob, effect.a, effect.b, effect.metric, effect.grade)
        found.setdefault(key, {})[effect.level] = round(effect.gain_pct, 1)
    return [(*key, gains) for key, gains in found.items()]


def test_every_document_has_its_line_in_the_table():
    assert {path.stem for path in DOCUMENTS.glob("*.md")} == set(YIELDS)


@pytest.mark.parametrize("name", YIELDS)
def test_a_document_yields_what_stands_in_it_and_no_more(name):
    expected, said, passed_over = YIELDS[name]

    read = read_evidence(DOCUMENTS / f"{name}.md", home=DOCUMENTS)

    assert compared(read.items) == expected
    told = "\n".join(read.said)
    assert all(words in told for words in said), told
    if ORDER not in said:
        assert ORDER not in told
    assert [words in line for words, line in zip(passed_over, read.passed_over, strict=True)] == [True] * len(
        passed_over
    )


def test_what_was_guessed_goes_into_the_record_too():
    (item,) = read_evidence(DOCUMENTS / "loose_words.md", home=DOCUMENTS).items

    assert "guessed: 4 and 8 are values" in str(item.measured["notes"])


def test_a_document_of_50_megabytes_is_refused_at_once(tmp_path):
    large = tmp_path / "LARGE.md"
    with large.open("wb") as file:
        file.truncate(50_000_000)
    began = time.monotonic()

    with pytest.raises(MisuseError, match="up to") as caught:
        read_evidence(large)

    assert time.monotonic() - began < 1
    assert "cut out the part" in str(caught.value.remedy)


@pytest.mark.parametrize(
    "text",
    [
        "## A_KNOB 1 → 2\n\n| conc | gain |\n|---|---|\n" + "| 64 | +1 % |\n" * 2000,
        "from 1 to " * 20000 + "\n",
        "- C64: " + "1 → 2 (" * 20000,
        "| " * 50000 + "\n" + "|-" * 50000 + "|\n",
        "-" * 100000 + "\n" + "|---" * 20000 + "x\n",
        "> " * 200 + "A_KNOB reverted to 1\n",
    ],
    ids=["many rows", "many arms", "unclosed list", "wide", "rules", "deep quotes"],
)
def test_hostile_text_is_read_in_bounded_time(tmp_path, text):
    file = tmp_path / "HOSTILE.md"
    file.write_text(text)
    began = time.monotonic()

    read_evidence(file)

    assert time.monotonic() - began < 5
