import time

import pytest

from vindicate.ledger.settings import assignments
from vindicate.ledger.told import reason_in, revert_in


@pytest.mark.parametrize(
    ("text", "was", "to", "reason"),
    [
        ("Rolled A_KNOB back from 512 to 256 after the hang on Tuesday.", "512", "256", "the hang on Tuesday"),
        ("We set `A_KNOB=256` again since sessions froze.", None, "256", "sessions froze"),
        ("A_KNOB: back to 256 (agents hang).", None, "256", "agents hang"),
        ("A_KNOB was reverted (512 -> 256) because of hangs.", "512", "256", "hangs"),
        ("NOTE: A_KNOB is back at 256.", None, "256", ""),
        ("We had to go back to 256 due to OOM.", None, "256", "OOM"),
        ("It could not be the router, so we reverted to 256.", None, "256", ""),
        ("When sessions froze we put A_KNOB back to 256.", None, "256", ""),
        ("Reverted to 256 because it would not stop hanging.", None, "256", "it would not stop hanging"),
        ("Turned off A_KNOB because of a deadlock in PD.", None, None, "a deadlock in PD"),
    ],
)
def test_a_revert_that_was_made_is_read(text, was, to, reason):
    told = revert_in(text)

    assert told is not None
    assert (told.from_value, told.to_value, told.reason) == (was, to, reason)


@pytest.mark.parametrize(
    "text",
    [
        "Do not revert A_KNOB to 256 because it is slower.",
        "We might go back to 256 if it hangs.",
        "Should we revert A_KNOB to 256 because of hangs?",
        "If it hangs, set A_KNOB back to 256.",
        "A_KNOB was never reverted to 256.",
        "TODO: revert A_KNOB to 256.",
        "To roll back to 256, edit A_KNOB in the script.",
        "Nobody reverted A_KNOB to 256, because it was not the cause.",
        "We plan to go back to 256.",
        "We didn't roll back to 256.",
        "A_KNOB must not be disabled due to hangs.",
        "If it was disabled due to hangs, enable it.",
    ],
)
def test_a_revert_that_was_only_thought_of_is_none(text):
    assert revert_in(text) is None


def test_a_sentence_without_end_is_read_in_bounded_time():
    began = time.monotonic()

    assert revert_in("a: " * 40_000 + "reverted A_KNOB to 1") is None
    assert len(reason_in("a: " * 40_000 + "back")) <= 2000

    assert time.monotonic() - began < 1


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("export A_KNOB=256", "256"),
        ('A_KNOB="256" ./serve', "256"),
        ("A_KNOB=${A_KNOB:-256}", "256"),
        (': "${A_KNOB:=256}"', "256"),
        ("  A_KNOB: 256  # default", "256"),
        ('  - "A_KNOB=256"', "256"),
        ("- A_KNOB=256", "256"),
        ("ENV A_KNOB=256", "256"),
        ('Environment="OTHER_ONE=1" "A_KNOB=256"', "256"),
        ("Environment=A_KNOB=256", "256"),
        ("- name: A_KNOB\n  value: '256'", "256"),
        ("- {name: A_KNOB, value: 256}", "256"),
        ("A_KNOB=256\r", "256"),
        ("A_KNOB=", ""),
        ("# A_KNOB=512", None),
        ("A_KNOB=1\nunset A_KNOB", None),
        ("- name: A_KNOB\n\n  value: 256", None),
        ("echo $A_KNOB", None),
    ],
)
def test_reads_a_setting_in_every_hand(line, value):
    assert assignments(line).get("A_KNOB", (None,))[0] == value


def test_reads_an_option_and_no_secret():
    found = assignments(
        "exec serve --chunked-prefill-size 8192 --api-key 123 \\\n  --mem-fraction-static=0.8\nHF_API_TOKEN=x\n"
    )

    assert {name: value for name, (value, _) in found.items()} == {
        "--chunked-prefill-size": "8192",
        "--mem-fraction-static": "0.8",
    }
