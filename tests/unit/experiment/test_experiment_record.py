"""What an experiment leaves behind: the published document, the ledger's effects, the noise for the next one, the text."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from fakes.bench import FakeBench, design_of
from vindicate.errors import CannotError, MisuseError
from vindicate.experiment.journal import Before, Journal, KeptFile
from vindicate.experiment.record import (
    earlier_experiments,
    is_recorded,
    noise_history,
    pace_history,
    record_design,
    record_result,
    restart_history,
)
from vindicate.experiment.run import run_experiment
from vindicate.ledger.store import Ledger
from vindicate.record.experiment import ClientError
from vindicate.record.ledger import ChangeStep
from vindicate.stack.model import Service, Stack
from vindicate.view.experiment import calibration_text, report_text

STACK = Stack(
    name="small",
    entry="decode",
    services={
        "decode": Service(name="decode", role="decode", engine="reference", url="http://h", metrics="", health="")
    },
)


def campaign(home: Path, gains, **plan):
    journal = Journal(home / "experiments" / "X1")
    design = design_of(**plan)
    journal.register(design)
    bench = FakeBench(gains)
    return design, journal, run_experiment(design, bench, journal, clock=bench.clock, say=lambda _line: None)


def test_published_document_has_the_names_of_the_contract(tmp_path):
    _, _, result = campaign(tmp_path, {"512": 0.128}, blocks=12)
    document = msgspec.json.decode(msgspec.json.encode(result))
    assert {"schema", "id", "knob", "arms", "design", "blocks_done", "stopped_at_look", "effects"} <= document.keys()
    assert document["schema"] == "vindicate.experiment/1"
    assert document["arms"] == {"a": "256", "b": "512"}
    assert {"blocks", "looks", "alpha", "seed", "order"} <= document["design"].keys()
    assert set(document["design"]["order"].split()) == {"ab", "ba"}
    wanted = {
        "level", "metric", "gain_pct", "lo_pct", "hi_pct", "confidence_pct", "p", "p_holm", "verdict", "reason", "mde_pct",
        "more_blocks", "grade",
    }  # fmt: skip
    assert all(wanted <= effect.keys() for effect in document["effects"])


def test_ledger_keeps_the_registration_and_every_estimated_effect_with_its_simulated_mark(tmp_path):
    design, journal, result = campaign(tmp_path, {"512": {64: 0.128}}, blocks=6)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        record_design(ledger, STACK, design, journal)
        record_result(ledger, STACK, design, result, journal)
        first, last = [fact.body for fact in ledger.facts("evidence")]
    assert (first.id, last.id) == ("X1", "X1")
    assert not first.effects
    assert [effect.level for effect in last.effects] == [48, 64]
    effect = last.effects[1]
    assert (effect.grade, effect.blocks, effect.simulated, effect.a, effect.b) == ("A", 6, True, "256", "512")
    assert effect.lo90_pct < 12.8 < effect.hi90_pct
    assert effect.value_b / effect.value_a == pytest.approx(1 + effect.gain_pct / 100, rel=0.01)


def test_an_arm_against_itself_adds_noise_and_no_effect(tmp_path):
    design, journal, result = campaign(tmp_path, {}, a="256", b="256", blocks=8)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert noise_history(ledger.facts("evidence"), STACK, design) is None
        record_design(ledger, STACK, design, journal)
        assert not is_recorded(ledger.facts("evidence"), "X1")
        record_result(ledger, STACK, design, result, journal)
        assert is_recorded(ledger.facts("evidence"), "X1")
        (last,) = [fact.body for fact in ledger.facts("evidence")][1:]
        noise = noise_history(ledger.facts("evidence"), STACK, design)
        other = noise_history(ledger.facts("evidence"), STACK, replace(design, metric="ttft_p50_ms"))
    assert last.effects == ()
    assert noise.experiments == 1
    assert 0.01 < noise.sd < 0.06, "restarts differ by 2 %, so blocks by about 2.8 %"
    assert other is None


def test_pace_is_learned_from_the_trials_on_disk(tmp_path):
    assert pace_history(tmp_path) is None
    campaign(tmp_path, {}, blocks=3)
    pace = pace_history(tmp_path)
    assert (pace.start_s, pace.request_s) == (30.0, 0.6)


def test_the_restart_of_a_change_on_record_is_the_first_measure_of_a_start(tmp_path):
    with Ledger.open(tmp_path / "l.db") as ledger:
        for took_s, together in ((40.0, ["prefill", "decode"]), (44.0, ["prefill", "decode"]), (3.0, ["proxy"])):
            ledger.append(ChangeStep(change="C1", state="restarted", data={"restarted": together, "took_s": took_s}))
        ledger.append(ChangeStep(change="C1", state="done"))
        facts = ledger.facts()
    assert restart_history(facts, ("prefill", "decode")) == 42.0
    assert restart_history(facts, ("router",)) is None


def test_report_shows_every_level_its_reason_and_what_would_change_it_and_never_says_no_change(tmp_path):
    _, _, result = campaign(tmp_path, {"512": {64: 0.128}}, blocks=6)
    text = report_text(result)
    for part in (
        "simulated",
        "better",
        "unresolved",
        "98" if len(result.design["looks"]) == 2 else "95",
        "what would change it",
    ):
        assert part in text
    assert "no change" not in text
    assert "order " + result.design["order"] in text
    assert "left out: nothing" in text


def test_a_design_is_registered_once_and_an_unknown_experiment_names_those_there_are(tmp_path):
    journal = Journal(tmp_path / "experiments" / "X1")
    journal.register(design_of())
    with pytest.raises(CannotError):
        journal.register(design_of())
    assert Journal.find(tmp_path, "X1").design() == design_of()
    with pytest.raises(MisuseError, match="'X9'") as caught:
        Journal.find(tmp_path, "X9")
    assert "X1" in caught.value.remedy


def test_bytes_of_before_come_back_exactly_and_others_cannot_read_them(tmp_path):
    script = tmp_path / "serve.sh"
    script.write_bytes(b"#!/bin/bash\r\nexport K=1 \xff\n")
    script.chmod(0o750)
    journal = Journal(tmp_path / "experiments" / "X1")
    journal.register(design_of())
    journal.keep(Before(files=(KeptFile.of(script),), running=("decode",), value="1"))
    journal.keep(Before(files=(), running=(), value=None))
    kept = journal.before()
    assert kept.running == ("decode",), "what was kept first stays"
    assert kept.files[0].raw == script.read_bytes()
    assert kept.files[0].mode == 0o750
    assert (journal.folder / "before.json").stat().st_mode & 0o077 == 0
    journal.forget()
    assert journal.before() is None


def test_a_new_design_is_held_against_the_last_finished_experiments_on_its_knob(tmp_path):
    _, journal, result = campaign(tmp_path, {"512": 0.128}, blocks=6)
    new = replace(design_of(blocks=3), id="X2")
    (seen,) = earlier_experiments(tmp_path, new)
    assert (seen.id, seen.a, seen.b, seen.effects) == ("X1", "256", "512", result.effects)
    assert seen.workload == new.workload
    assert earlier_experiments(tmp_path, replace(new, knob="OTHER")) == ()
    assert earlier_experiments(tmp_path, replace(new, metric="ttft_p50_ms")) == ()
    (journal.folder / "trials.jsonl").write_bytes(
        b"".join((journal.folder / "trials.jsonl").read_bytes().splitlines(True)[:5])
    )
    assert earlier_experiments(tmp_path, new) == (), "an unfinished one says nothing"
    (journal.folder / "design.json").write_bytes(b"{")
    assert earlier_experiments(tmp_path, new) == ()


def test_what_a_design_is_held_against_and_the_client_s_error_survive_on_disk(tmp_path):
    campaign(tmp_path, {"512": 0.128}, blocks=6)
    error = ClientError(level=64, requests=192, ttft_ms=0.4, itl_ms=0.02, e2e_ms=1.5)
    design = replace(design_of(blocks=3), id="X2", client_error=(error,))
    design = replace(design, earlier=earlier_experiments(tmp_path, design))
    journal = Journal(tmp_path / "experiments" / "X2")
    journal.register(design)
    assert journal.design() == design
    bench = FakeBench({"512": 0.128})
    result = run_experiment(design, bench, journal, clock=bench.clock, say=lambda _line: None)
    assert result.design["held_against"] == ["X1"]
    assert result.design["client_error"] == [{"level": 64, "ttft_ms": 0.4, "itl_ms": 0.02, "e2e_ms": 1.5}]
    assert "at 64: +0.40 / +0.020 / +1.50 ms" in calibration_text(design.client_error)
