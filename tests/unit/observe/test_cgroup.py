"""What a control group's files say."""

import os

import pytest

from vindicate.observe.cgroup import Cgroup, cgroup_of


@pytest.mark.parametrize(("events", "frozen"), [("populated 1\nfrozen 1\n", True), ("populated 1\nfrozen 0\n", False)])
def test_a_group_of_v2_is_frozen_when_its_events_say_so(tmp_path, events, frozen):
    (tmp_path / "cgroup.events").write_text(events)
    assert Cgroup(events=tmp_path / "cgroup.events").frozen() is frozen


@pytest.mark.parametrize(("state", "frozen"), [("FROZEN\n", True), ("THAWED\n", False), ("FREEZING\n", False)])
def test_a_group_of_v1_is_frozen_when_its_state_says_so(tmp_path, state, frozen):
    (tmp_path / "freezer.state").write_text(state)
    assert Cgroup(freezer=tmp_path / "freezer.state").frozen() is frozen


def test_counts_periods_and_those_held_back_and_nothing_without_a_quota(tmp_path):
    file = tmp_path / "cpu.stat"
    file.write_text("usage_usec 9\nnr_periods 40\nnr_throttled 30\nthrottled_usec 7\n")
    assert Cgroup(cpu=file).periods() == (40, 30)
    file.write_text("usage_usec 9\nnr_periods 0\nnr_throttled 0\n")
    assert Cgroup(cpu=file).periods() is None
    assert Cgroup().periods() is None


@pytest.mark.parametrize("junk", [b"", b"\xff\xfe\x00frozen", b"frozen\nfrozen 1 2\nfrozen x\n"])
def test_takes_no_harm_from_a_file_that_is_not_as_it_should_be(tmp_path, junk):
    file = tmp_path / "any"
    file.write_bytes(junk)
    group = Cgroup(events=file, freezer=file, cpu=file)
    assert (group.frozen(), group.periods()) == (False, None)


def test_a_process_that_is_gone_has_no_groups_and_ours_is_not_frozen():
    assert cgroup_of(2**22 - 1) == Cgroup()
    assert not cgroup_of(os.getpid()).frozen()
