import pytest

from vindicate.ledger.cell import arms_in, gain_in, level_in, number_in
from vindicate.ledger.markdown import tables
from vindicate.ledger.table import Comparison, Reading, Skipped, understand

KNOB = "SGLANG_SM120_MMA_TARGET_CTAS"
STORY = {64: 12.8, 80: 1.2, 96: 5.7}

HANDS = {
    "a plan with figures and a change column": f"""
# Performance plan (2026-05-12)

## {KNOB}: 256 → 512

One start per arm.

| Concurrency | tok/s (256) | tok/s (512) | change |
|------------:|------------:|------------:|-------:|
| C64         |      2310.4 |      2606.1 | +12.8 % |
| C80         |      2702.0 |      2734.4 | +1.2 %  |
| C96         |      2800.0 |      2959.6 | +5.7 %  |
""",
    "ratios, c=N, values named above": f"""
We raised `{KNOB}` from 256 to 512.

c | speedup
--|--
c=64 | 1.128x
c=80 | 1.012x
c=96 | 1.057x
""",
    "levels across the head, one row an arm": f"""
### Results for `{KNOB}`

Output throughput, tok/s.

| setting | 64 concurrent | 80 concurrent | 96 concurrent |
|---|---|---|---|
| 256 (default) | 1000 | 2000 | 3000 |
| 512 | 1,128 | 2,024 | 3,171 |
""",
    "a row for each value and level": f"""
| `{KNOB}` | conc | output tok/s |
|---|---|---|
| 256 | 64 | 1000 |
| 256 | 80 | 2000 |
| 256 | 96 | 3000 |
| 512 | 64 | 1128 |
| 512 | 80 | 2024 |
| 512 | 96 | 3171 |

Default is 256.
""",
    "before and after, decimal commas, minus signs": f"""
Verglichen: `{KNOB}=512` gegen den default 256.

| Streams | before | after | Δ |
|---|---|---|---|
| 64 | 1000,0 | 1128,0 | 12,8 % |
| 80 | 2000,0 | 2024,0 | 1,2 % |
| 96 | 3000,0 | 3171,0 | 5,7 % |
""",
    "bold, tildes, ragged rows, a note in the last row": f"""
| users | {KNOB} 256 -> 512 |
|---|---|
| **64** | **+12.8%** (!) | extra
| 80 | ~+1.2%
| 96 | +5.7 % ± 2
| all | see above |
""",
}


def read(text, **more):
    return [understand(grid, **more) for grid in tables(text)]


@pytest.mark.parametrize("hand", HANDS)
def test_reads_the_gain_per_level_whoever_wrote_the_table(hand):
    (reading,) = read(HANDS[hand])

    assert isinstance(reading, Reading), reading
    assert (reading.knob, reading.a, reading.b) == (KNOB, "256", "512")
    assert {effect.level: round(effect.gain_pct, 1) for effect in reading.effects} == STORY
    assert {effect.grade for effect in reading.effects} == {"D"}
    assert {effect.lo90_pct for effect in reading.effects} == {None}


def test_names_the_line_of_the_table_and_its_date():
    (reading,) = read(HANDS["a plan with figures and a change column"])

    assert reading.line == 8
    assert reading.measured_on == "2026-05-12"
    assert reading.effects[0].value_b == 2606.1


def test_says_what_it_guessed_and_what_it_left_out():
    (reading,) = read(HANDS["bold, tildes, ragged rows, a note in the last row"])

    said = " / ".join(reading.notes)
    assert "no level in 'all'" in said
    assert "spread of unknown meaning" in said
    assert "the table names no metric" in said


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("| GPU | memory |\n|---|---|\n| 0 | 96 GB |\n| 1 | 96 GB |", "about something else"),
        ("| conc | owner |\n|---|---|\n| 64 | anna |\n| 80 | ben |", "names no knob"),
        (f"{KNOB} 256 → 512\n\n| conc | errors |\n|---|---|\n| 64 | none |\n| 80 | two |", "no gain"),
        (f"## {KNOB}\n\n| conc | tok/s | change |\n|---|---|---|\n| 64 | 12 | +3 % |", "which two values"),
        ("A_KNOB and B_KNOB 1 → 2\n\n| conc | change |\n|---|---|\n| 64 | +3 % |", "several"),
        (f"{KNOB} 256 → 512\n\n<table><tr><td>64</td><td>+12 %</td></tr></table>", "HTML"),
    ],
)
def test_says_why_a_table_is_not_taken(text, why):
    (skipped,) = read(text)

    assert isinstance(skipped, Skipped), skipped
    assert why in skipped.why


def test_takes_the_figures_when_the_stated_change_contradicts_them():
    text = (
        f"{KNOB} 256 → 512\n\n| conc | 256 tok/s | 512 tok/s | change |\n|---|---|---|---|\n| 64 | 1000 | 900 | +10 % |"
    )

    (reading,) = read(text)

    assert reading.effects[0].gain_pct == pytest.approx(-10)
    assert "its own figures give -10.0 %" in reading.notes[0]


def test_what_was_struck_through_counts_for_nothing():
    text = f"{KNOB} 256 → 512\n\n| conc | change |\n|---|---|\n| 64 | ~~+99 %~~ +12.8 % |"

    (reading,) = read(text)

    assert reading.effects[0].gain_pct == pytest.approx(12.8)


def test_several_starts_in_the_text_make_grade_c():
    text = f"{KNOB} 256 → 512, three fresh starts per arm\n\n| conc | change |\n|---|---|\n| 64 | +12.8 % |"

    (reading,) = read(text)

    assert reading.effects[0].grade == "C"
    assert "three fresh starts" in reading.grade_because


def test_takes_knob_and_values_from_the_user_where_the_document_is_silent():
    (reading,) = read("| conc | change |\n|---|---|\n| 64 | +12.8 % |", said=Comparison(knob="X_Y", a="1", b="2"))

    assert (reading.knob, reading.a, reading.b) == ("X_Y", "1", "2")


def test_a_latency_and_a_throughput_in_one_table_stay_apart():
    text = f"""{KNOB} 256 → 512

| conc | tok/s 256 | tok/s 512 | change | TTFT 256 | TTFT 512 |
|---|---|---|---|---|---|
| 64 | 1000 | 1128 | +12.8 % | 200 | 100 |
"""
    (reading,) = read(text)

    gains = {effect.metric: round(effect.gain_pct, 1) for effect in reading.effects}
    assert gains == {"output_tok_per_s": 12.8, "ttft_ms": -50.0}


@pytest.mark.parametrize(
    "text", ["", "|", "|\n|-|", "| a |\n|---|\n" * 500, "\u202e| c | x |\n|---|---|\n| 64 | +1 % |", "| |\n|---|\n| |"]
)
def test_survives_hostile_documents(text):
    assert all(isinstance(reading, Reading | Skipped) for reading in read(text))


def test_every_table_of_a_document_is_read_for_itself():
    text = HANDS["a plan with figures and a change column"] + "\n## Hosts\n\n| GPU | memory |\n|---|---|\n| 0 | 96 |\n"

    first, second = read(text)

    assert isinstance(first, Reading)
    assert isinstance(second, Skipped)


@pytest.mark.parametrize(
    ("cell", "level"),
    [("C48", 48), ("c=64", 64), ("64 concurrent", 64), ("@96", 96), ("48c", 48), ("4096 MB", None), ("", None)],
)
def test_reads_a_level_as_people_write_it(cell, level):
    assert level_in(cell) == level


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        ("1,234.5", 1234.5),
        ("1 234", 1234),
        ("12,8", 12.8),
        ("1.2k tok/s", 1200),
        ("1234 ± 12", 1234),
        ("1.234,5", None),
        ("abc", None),
    ],
)
def test_reads_a_number_or_none(cell, number):
    assert number_in(cell) == number


@pytest.mark.parametrize(
    ("cell", "gain"), [("+12.8 %", 12.8), ("1.128x", 12.8), ("\u22123.2%", -3.2), ("12,8 %", 12.8)]
)
def test_reads_a_gain(cell, gain):
    found = gain_in(cell)
    assert found is not None
    assert found[0] == pytest.approx(gain)


def test_a_bare_number_is_no_gain():
    assert gain_in("12.8") is None


@pytest.mark.parametrize(
    ("text", "arms"),
    [
        ("256 → 512", ("256", "512", True)),
        ("from 256 to 512", ("256", "512", True)),
        ("512 over 256", ("256", "512", True)),
        ("512 vs 256", ("256", "512", False)),
        ("v1.2 to v1.3", None),
    ],
)
def test_reads_which_values_are_compared_and_whether_the_order_is_said(text, arms):
    assert arms_in(text) == arms
