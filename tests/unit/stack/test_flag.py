"""A flag among the words of a command line: found as argparse finds it, or said to be unclear."""

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vindicate.stack.flag import UnclearFlagError, find_flag, may_become, same_flag, spelled, splice_for, written

WORD = st.sampled_from(["", "a b", *"--max-cap --max_cap --max-cap=7 --max_cap= --max-c --max --other --o=1 -x -1 -0.5 7 a 8 -".split()])  # fmt: skip


def taken_by_argparse(words):
    judge = argparse.ArgumentParser(add_help=False)
    judge.add_argument("--max-cap", "--max_cap", nargs="?", const="", action="append")
    found, rest = judge.parse_known_args(words)
    return found.max_cap or [None], rest


@given(words=st.lists(WORD, max_size=5))
def test_argparse_agrees_wherever_it_is_not_unclear(words):
    try:
        site = find_flag(words, "--max-cap")
    except UnclearFlagError:
        return
    assert taken_by_argparse(words)[0] == [site.value if site else None]


@given(words=st.lists(WORD, max_size=5), value=st.sampled_from(["5", "", "-x", "a b", "-1", None]))
def test_a_splice_changes_the_flag_and_nothing_else(words, value):
    try:
        splice = splice_for(words, "max_cap", value, since=0)
    except UnclearFlagError:
        return
    assert taken_by_argparse(splice.done(words)) == ([value], taken_by_argparse(words)[1])


@pytest.mark.parametrize(("words", "problem"), [
    (["--max-cap", "1", "--max_cap", "2"], "more than once"), (["--max-c", "1"], "short for"), (["--max-cap", "1", "2"], "more than one word"),
    (["--", "--max-cap"], "ends its flags"), (["--max-cap", None], "only known"), (["--no-max-cap"], "other side"),
])  # fmt: skip
def test_what_is_unclear_is_said(words, problem):
    with pytest.raises(UnclearFlagError, match=problem):
        find_flag(words, "--max-cap")


@pytest.mark.parametrize(("words", "flag", "value"), [
    (["--enable-x", "model"], "--enable-x", ""), (["--enable-x", "true"], "--enable-x", "true"), (["--model", "m"], "--model-impl", None),
    (["-c", "4096"], "-c", "4096"), (["-ngl", "9", "-n", "1"], "-ngl", "9"), (["--tp", "2"], "--tp", "2"), ([None, "--a", None], "--b", None),
])  # fmt: skip
def test_switches_short_flags_and_well_known_names(words, flag, value):
    site = find_flag(words, flag)
    assert (site.value if site else None) == value


def test_aliases_that_share_a_beginning_are_unclear():
    for words, flag in ((["--model", "m"], "--model-path"), (["--tp", "2"], "--tp-size"), (["-c4096"], "-c")):
        with pytest.raises(UnclearFlagError):
            find_flag(words, flag)


def test_spellings():
    assert spelled("max_cap") == spelled("--max-cap") == spelled("max-cap") == "--max-cap"
    assert spelled("-ngl") == "-ngl"
    assert (written("max_cap"), written("-c")) == ("--max_cap", "-c")
    assert same_flag("-c", "c")
    assert not same_flag("--max-cap", "--max-caps")
    assert may_become("--max-", "--max-cap")
    assert may_become("--max_cap=", "--max-cap")
    assert not may_become("--port=", "--max-cap")
    assert not may_become("x", "--max-cap")
