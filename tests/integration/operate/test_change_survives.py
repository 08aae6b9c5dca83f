"""Whatever breaks under a change (ledger, disk, somebody's editor), services stay up and the way to finish it is said."""

import pytest

from fakes.change_bench import quiet
from vindicate.errors import CannotError, EngineError, LedgerError
from vindicate.operate.change import operation_on
from vindicate.operate.services import bring_down, run_members

HOW = ("vindicate change resume C1", "vindicate change rollback C1")


def says_how(said):
    return all(command in said[-1] for command in HOW)


@pytest.mark.parametrize("place", ["backed_up:before", "written:after", "restarted:after", "done:after"])
def test_a_ledger_that_fails_under_a_change_stops_it_with_services_up_and_says_how_to_finish(bench, place):
    b, said = bench(), []

    def breaks(here):
        if here == place:
            b.ledger._writable = False

    with pytest.raises(LedgerError):
        b.change(KNOB="512", at_step=breaks, say=said.append)
    assert says_how(said)
    assert run_members(b.stack, b.stack.service("worker"))
    b.ledger._writable = True
    operation_on(b.stack, b.ledger, b.book, "C1", say=quiet).roll_back("asked for")
    assert b.live == {"256"}
    assert b.script.read_bytes() == b.before


def test_an_undoing_that_cannot_be_recorded_is_done_all_the_same_and_says_how_to_finish(bench):
    b, said = bench(worker="--fail-knob 512"), []

    def breaks(here):
        if here == "restarted:before":
            b.ledger._writable = False

    with pytest.raises(LedgerError):
        b.change(KNOB="512", at_step=breaks, say=said.append)
    assert says_how(said)
    assert b.live == {"256"}
    assert b.script.read_bytes() == b.before


def test_a_deleted_ledger_is_noticed_before_the_next_step(bench):
    b, said = bench(), []

    def deletes(here):
        if here == "backed_up:after":
            b.ledger.path.unlink()

    with pytest.raises(LedgerError, match="is gone"):
        b.change(KNOB="512", at_step=deletes, say=said.append)
    assert says_how(said)
    assert b.script.read_bytes() == b.before
    assert b.live == {"256"}


def test_an_edit_during_the_change_that_keeps_the_value_is_left_alone_and_said(bench):
    b, said = bench(), []
    theirs = b"# mine\n" + b.before.replace(b"KNOB=256", b"KNOB=512")
    operation = b.change(
        KNOB="512", at_step=lambda here: here == "checked:after" and b.script.write_bytes(theirs), say=said.append
    )
    assert b.script.read_bytes() == theirs
    assert b.state("C1") == "done"
    assert "worker.sh was edited by somebody else during the change" in operation.told[0]


@pytest.mark.parametrize("now", [b"300", b"$OTHER"])
def test_an_edit_during_the_change_that_takes_the_value_away_is_left_alone_and_no_success(bench, now):
    b = bench()
    theirs = b.before.replace(b"KNOB=256", b"KNOB=" + now)
    with pytest.raises(CannotError, match="edited by somebody else") as caught:
        b.change(KNOB="512", at_step=lambda here: here == "checked:after" and b.script.write_bytes(theirs))
    assert b.script.read_bytes() == theirs
    assert b.state("C1") == "failed"
    assert "vindicate stack restart worker" in caught.value.remedy
    assert run_members(b.stack, b.stack.service("worker"))


def test_services_are_started_again_when_a_script_cannot_be_put_back(bench, monkeypatch):
    b = bench()
    theirs = b"# mine\n" + b.before

    def breaks(stack, names, **_more):
        bring_down(stack, tuple(names), say=quiet)
        b.script.write_bytes(theirs)
        raise EngineError("worker: did not come up", remedy="read its log")

    monkeypatch.setattr("vindicate.operate.change.restart", breaks)
    with pytest.raises(CannotError, match="edited by somebody else"):
        b.change(KNOB="512")
    assert b.script.read_bytes() == theirs
    assert b.live == {"256"}
