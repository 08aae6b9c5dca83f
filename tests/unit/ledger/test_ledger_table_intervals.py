import pytest

from vindicate.ledger.markdown import tables
from vindicate.ledger.table import Comparison, Reading, understand

KNOB = "SGLANG_SM120_MMA_TARGET_CTAS"
STORY = {64: 12.8, 80: 1.2, 96: 5.7}


def read(text, **more):
    (reading,) = (understand(grid, **more) for grid in tables(text))
    assert isinstance(reading, Reading), reading
    return reading


def gains(reading):
    return {effect.level: round(effect.gain_pct, 1) for effect in reading.effects}


def bounds(reading):
    return {effect.level: (effect.lo90_pct, effect.hi90_pct) for effect in reading.effects}


PLAINEST = """
{intro}

| conc | 256 | 512 | gain |
|---|---|---|---|
| 64 | 1000 | 1128 | +12.8 % |
| 80 | 2000 | 2024 | +1.2 % |
| 96 | 3000 | 3171 | +5.7 % |
"""


def test_two_values_in_the_head_of_the_plainest_table_are_no_levels():
    assert gains(read(PLAINEST.format(intro=f"`{KNOB}` 256 → 512, output tok/s"))) == STORY


def test_two_values_in_the_head_are_read_with_what_the_user_says():
    reading = read(PLAINEST.format(intro="output tok/s"), said=Comparison(knob=KNOB, a="256", b="512"))
    assert gains(reading) == STORY


def test_levels_across_an_empty_corner_are_read():
    text = f"`{KNOB}` 256 → 512, output tok/s\n\n| | 64 | 80 | 96 |\n|---|---|---|---|\n| 256 | 1000 | 2000 | 3000 |\n| 512 | 1128 | 2024 | 3171 |\n"
    assert gains(read(text)) == STORY


def test_levels_across_beside_bare_values_are_still_turned():
    text = f"`{KNOB}` 256 → 512, output tok/s\n\n| conc | 64 | 96 |\n|---|---|---|\n| 256 | 1000 | 3000 |\n| 512 | 1128 | 3171 |\n"
    assert gains(read(text)) == {64: 12.8, 96: 5.7}


def test_a_spread_before_the_per_cent_sign_is_said_and_not_taken_for_an_interval():
    reading = read(f"`{KNOB}` 256 → 512\n\n| conc | gain |\n|---|---|\n| 64 | +12.8 ± 3.1 % |\n")
    assert gains(reading) == {64: 12.8}
    assert bounds(reading) == {64: (None, None)}
    assert "spread of unknown meaning" in " / ".join(reading.notes)


TABLE = """
`SGLANG_SM120_MMA_TARGET_CTAS` 256 → 512, output tok/s (6 blocks, random order)

| conc | gain | {head} |
|---|---|---|
| 64 | +12.8 % | {cell} |
"""


@pytest.mark.parametrize("cell", ["+9.7 … +16.0", "[9.7, 16.0]", "9.7 to 16.0", "9.7\u201316.0", "(+9.7 %, +16.0 %)"])
def test_a_column_of_90_per_cent_intervals_is_read(cell):
    assert bounds(read(TABLE.format(head="90% CI", cell=cell))) == {64: (9.7, 16.0)}


@pytest.mark.parametrize(("head", "said"), [("95% CI", "of 95 %"), ("95 % CI", "of 95 %"), ("CI", "of unknown level")])
def test_an_interval_of_another_level_is_passed_over_and_says_so(head, said):
    reading = read(TABLE.format(head=head, cell="+9.7 … +16.0"))
    assert bounds(reading) == {64: (None, None)}
    assert said in " / ".join(reading.notes)
    assert "passed over" in " / ".join(reading.notes)


def test_an_interval_that_does_not_hold_its_gain_is_not_taken():
    reading = read(TABLE.format(head="90% CI", cell="1.0 … 2.0"))
    assert bounds(reading) == {64: (None, None)}
    assert "does not hold the gain" in " / ".join(reading.notes)


def test_blocks_in_random_order_are_several_starts():
    reading = read(TABLE.format(head="90% CI", cell="+9.7 … +16.0"))
    assert {effect.grade for effect in reading.effects} == {"C"}
    assert "6 blocks" in reading.grade_because


def test_columns_of_both_ends_and_of_starts_are_read():
    reading = read(
        f"`{KNOB}` 256 → 512, output tok/s\n\n| conc | 256 | 512 | gain | lo90 | hi90 | starts |\n|---|---|---|---|---|---|---|\n"
        "| 64 | 1000 | 1128 | +12.8 % | +9.7 % | +16.0 % | 6 |\n| 80 | 2000 | 2024 | +1.2 % | -0.8 | 3.2 | 6 |\n"
    )
    assert gains(reading) == {64: 12.8, 80: 1.2}
    assert bounds(reading) == {64: (9.7, 16.0), 80: (-0.8, 3.2)}
    assert {effect.grade for effect in reading.effects} == {"C"}


def test_one_end_without_the_other_is_passed_over_and_says_so():
    reading = read(TABLE.format(head="lo90", cell="9.7"))
    assert bounds(reading) == {64: (None, None)}
    assert "without the other" in " / ".join(reading.notes)
