from itertools import islice

import pytest

from vindicate.reference.model import BLOCK_BYTES, FILLER, FILLER_LEN, USER_MARK, CopyModel, tokenize

MODEL = CopyModel()


def said(context: str, n: int = 4) -> str:
    return "".join(islice((token for token in MODEL.begin(MODEL.prefill(context)) if token), n)).strip()


def user(*texts: str) -> str:
    return "<|assistant|>\nok\n".join(f"{USER_MARK}{text}\n" for text in texts)


def test_copies_the_value_that_a_key_was_given_in_an_earlier_round():
    assert said(user("The value of KEY-1 is VAL-7.", "Hm.", "What is the value of KEY-1?"), 1) == "VAL-7"


def test_answers_about_an_earlier_key_when_the_same_message_plants_a_new_one():
    last = "The value of KEY-2 is VAL-8. What is the value of KEY-1? Answer with the value."
    assert said(user("The value of KEY-1 is VAL-7.", last), 1) == "VAL-7"


def test_answers_about_a_key_planted_in_the_same_message():
    assert said(user("The value of KEY-2 is VAL-8. What is the value of KEY-2?"), 1) == "VAL-8"


def test_takes_the_last_definition():
    assert said(user("The value of K is a.", "K=b, sorry", "What is K?"), 1) == "b"


def test_copies_a_value_longer_than_a_token():
    value = "v" * 40
    assert said(user(f"token=abc long={value}", "and long?"), 3) == value


def test_says_only_filler_when_the_key_is_unknown_or_forgotten():
    assert said(user("What is the value of KEY-1?"), len(FILLER)) == "".join(FILLER).strip()


def test_does_not_answer_when_nothing_is_asked():
    assert said(user("The value of KEY-1 is VAL-7."), 1) == FILLER[0].strip()


def test_marks_the_end_of_an_answer_once_and_goes_on_for_ever():
    tokens = list(islice(MODEL.begin(MODEL.prefill(user("a=b", "a?"))), 100))
    assert tokens.index(None) == 1 + FILLER_LEN
    assert tokens.count(None) == 1


@pytest.mark.parametrize("text", ["", "a b", "  two  spaces\n\n", "x" * 100, "日本語 text \U0001f600 é", "\t\r\n"])
def test_tokens_joined_are_the_text_again(text):
    assert "".join(tokenize(text)) == text


def test_every_token_fits_a_block_even_of_the_widest_characters():
    assert len(MODEL.prefill(" " + "\U0001f600" * 15)) == BLOCK_BYTES


def test_survives_text_that_is_no_valid_unicode():
    assert said(user("K=a\ud800b", "K?"), 1) == "a?b"


def test_answers_wrong_when_a_block_of_the_kv_is_lost():
    kv = MODEL.prefill(user("The value of KEY-1 is VAL-7.", "What is the value of KEY-1?"))
    start = next(at for at in range(0, len(kv), BLOCK_BYTES) if b"VAL-7" in kv[at : at + BLOCK_BYTES])
    without = kv[:start] + kv[start + BLOCK_BYTES :]
    assert next(MODEL.begin(without)) != "VAL-7"


def test_refuses_kv_that_is_cut_inside_a_block():
    with pytest.raises(ValueError, match="no whole blocks"):
        MODEL.begin(b"\x01a")
