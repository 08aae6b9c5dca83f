"""A saved document of ours with a field of the wrong type is refused by file and field."""

import json

import pytest

from vindicate.errors import MisuseError
from vindicate.ledger.exchange import SCHEMA, load
from vindicate.ledger.importing import diagnosis_evidence, read_evidence
from vindicate.ledger.live import held_in
from vindicate.record.observation import Address, Capture, ProcessFacts, SeenService

LOAD = {"schema": "vindicate.load/1", "levels": [{"requests": 4, "completed": 4}], "started_at": "2026-11-29T10:00:00Z"}
DIAGNOSIS = {"schema": "vindicate.diagnosis/1", "status": "healthy", "summary": "all is well", "cleared": []}


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({**LOAD, "levels": 5}, "$.levels"),
        ({**LOAD, "levels": [{"requests": "four"}]}, "$.levels[0].requests"),
        ({**LOAD, "levels": [3]}, "$.levels[0]"),
        ({**LOAD, "complete": "yes"}, "$.complete"),
        ({"schema": "vindicate.load/1"}, "levels"),
        ({**LOAD, "started_at": 7}, "$.started_at"),
        ({**DIAGNOSIS, "status": "splendid"}, "$.status"),
        ({**DIAGNOSIS, "summary": None}, "$.summary"),
        ({**DIAGNOSIS, "cleared": {"service": "decode"}}, "$.cleared"),
        ({**DIAGNOSIS, "cleared": [{"service": "decode", "knobs": "K_K"}]}, "$.cleared[0].knobs"),
        ({**DIAGNOSIS, "service": ["decode"]}, "$.service"),
        ({**DIAGNOSIS, "started_at": 1.5}, "$.started_at"),
    ],
)
def test_a_field_of_the_wrong_type_is_named_with_its_file(tmp_path, document, field):
    path = tmp_path / "saved.json"
    path.write_text(json.dumps(document))

    with pytest.raises(MisuseError) as caught:
        read_evidence(path)
    assert "saved.json: " in caught.value.problem
    assert field in caught.value.problem


def test_what_is_sound_is_still_read(tmp_path):
    path = tmp_path / "saved.json"
    path.write_text(json.dumps(LOAD))
    (item,) = read_evidence(path).items
    assert (item.measured["requests"], item.measured["stalled"]) == (4, 0)


@pytest.mark.parametrize("field", ["happened_at", "recorded_at"])
def test_an_exported_fact_with_a_time_that_is_none_is_named_with_its_line(field):
    fact = {"seq": 1, "kind": "incident", "happened_at": "2026-11-29T10:00:00Z", "recorded_at": "2026-11-29T10:00:00Z"}
    line = json.dumps({**fact, "by": "ann", "body": {"id": "INC-1", "text": "hang"}, field: "yesterday"})
    with pytest.raises(MisuseError, match=rf"x\.jsonl:2: no fact: {field}: 'yesterday' is no time"):
        load([json.dumps({"schema": SCHEMA}), line], name="x.jsonl")


def capture(*processes, knobs=("K_K",), pids=(1, 2)):
    service = SeenService(
        name="decode", role="decode", engine="generic", url=None, address=Address("127.0.0.1", 1), upstream=(),
        pids=pids, knobs=dict.fromkeys(knobs),
    )  # fmt: skip
    return Capture(schema="x", host="h", started_at="", window_s=1.0, entry="decode", services=(service,), processes=processes)  # fmt: skip


def process(pid, **knobs):
    return ProcessFacts(pid=pid, ppid=0, name="p", argv=(), started_at="", knobs=knobs)


@pytest.mark.parametrize(
    ("seen", "held"),
    [
        (capture(process(1, K_K="512"), process(2, K_K="512")), {"K_K": "512"}),
        (capture(process(1, K_K=None), process(2, K_K=None)), {"K_K": None}),
        (capture(process(1, K_K="512"), process(2, K_K="256")), {}),
        (capture(process(1, K_K="512"), process(2)), {}),
        (capture(pids=()), {}),
    ],
)
def test_the_value_that_a_diagnosis_was_made_at_is_kept_with_it_where_all_processes_agree(seen, held):
    assert held_in(seen) == held
    kept = diagnosis_evidence(DIAGNOSIS, source="x", held=held_in(seen)).fingerprint
    assert kept == {f"knob:{name}": value for name, value in held.items()}
