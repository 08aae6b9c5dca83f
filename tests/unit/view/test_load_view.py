from vindicate.load.summary import summarise
from vindicate.record.load import LoadSummary, RequestRecord
from vindicate.view.load import load_lines, show_load


def record(**fields):
    given = {"id": "x", "level": 2, "session": 0, "round": 1, "started_at": "", "start_s": 0.0, "e2e_s": 1.0, **fields}
    return RequestRecord(**given)


def summary(*records, **fields):
    given = {"schema": "vindicate.load/1", "url": "http://h:1", "model": "m", "started_at": "", "client_cpu_s": 0.1}
    return LoadSummary(levels=(summarise(2, 1.0, records),), **given, **fields)


def test_stalled_streams_are_named_with_their_ages_and_the_next_command():
    stalled = [record(outcome="stalled", error="stalled", stall_age_s=age) for age in (30.0, 30.5)]
    lines = load_lines(summary(*stalled))
    assert "level 2: 2 stalled" in lines
    assert "level 2: 2 stalled streams, silent for 30.5 s, 30.0 s" in lines
    assert lines[-1] == "next: vindicate diagnose http://h:1"


def test_a_clean_run_has_nothing_to_add():
    assert load_lines(summary(record(outcome="completed"))) == []


def test_simulated_figures_are_labelled():
    assert any("simulated" in line for line in load_lines(summary(record(outcome="completed"), simulated=True)))


def test_the_table_shows_a_dash_where_the_sample_bears_no_figure(capsys):
    show_load(summary(record(outcome="completed", ttft_s=0.5)))
    head, row = capsys.readouterr().out.splitlines()[:2]
    assert head.split()[0] == "level"
    assert "- / -" in row
