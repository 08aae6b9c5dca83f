"""The wave model against the figures of the story, and how little a good fit proves."""

import pytest

from vindicate.errors import MisuseError
from vindicate.stats.wavefit import fit_waves

STORY = {64: 12.8, 80: 1.2, 96: 5.7}


def story(**more):
    return fit_waves(256, 512, sms=188, levels=(48, 64, 80, 96), measured=STORY, **more)


def test_finds_the_mapping_share_and_error_that_the_research_note_found():
    best = story().mappings[0]
    assert best.name == "ceil, 2 head blocks, 1 CTA per SM"
    assert best.rmse_pct == pytest.approx(0.74, abs=0.01)
    assert best.kernel_share == pytest.approx(0.46, abs=0.011)
    at_64 = next(row for row in best.levels if row.level == 64)
    assert at_64.ctas == (256, 512)
    assert at_64.waves == pytest.approx((1.36, 2.72), abs=0.005)
    assert at_64.efficiency == pytest.approx((0.68, 0.91), abs=0.005)
    assert at_64.predicted_gain_pct == pytest.approx(13.0, abs=0.3)
    assert at_64.measured_gain_pct == 12.8


def test_names_48_as_the_level_that_would_decide():
    assert story().decides == 48


def test_says_how_often_chance_is_fitted_as_well():
    fit = story()
    assert fit.chance is not None
    assert 0.02 < fit.chance < 0.2
    flat = fit_waves(256, 512, sms=188, levels=(), measured={64: 5.0, 80: 5.0, 96: 5.0})
    assert flat.mappings[0].rmse_pct > 1


def test_another_card_does_not_show_the_pattern():
    on_h200 = fit_waves(256, 512, sms=132, levels=(64, 80, 96), measured=STORY)
    assert on_h200.mappings[0].rmse_pct > 4


def test_without_measurements_it_predicts_and_claims_no_fit():
    fit = fit_waves(256, 512, sms=188, levels=(64,), measured={})
    assert fit.chance is None
    assert fit.decides is None
    assert {mapping.rmse_pct for mapping in fit.mappings} == {None}


def test_refuses_levels_that_cannot_be():
    with pytest.raises(MisuseError):
        fit_waves(256, 512, sms=188, levels=(0,), measured={})
    with pytest.raises(MisuseError):
        fit_waves(256, 512, sms=188, levels=(), measured={})
