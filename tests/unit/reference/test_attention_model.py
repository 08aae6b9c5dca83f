"""The constructed model answers through its KV, by the same rule as its shortcut, in float64 and on the kernel alike."""

import random
from itertools import islice

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from vindicate.errors import BugError
from vindicate.reference.attention import PAGE, exact_attention
from vindicate.reference.induction import WIDTH, AttentionModel
from vindicate.reference.model import USER_MARK, CopyModel
from vindicate.reference.pages import Pool
from vindicate.reference.split_k import SplitK

SHORTCUT = CopyModel()
ORACLE = AttentionModel(exact_attention)
KERNEL = AttentionModel(SplitK(256))
PAGE_BYTES = 2 * PAGE * WIDTH * 4
PLANTED = (
    "words before it. " * 20
    + "The value of KEY-1 is VAL-7abc. "
    + "words after it. " * 20
    + "What is the value of KEY-1?"
)


def tokens(model, kv, n=24):
    answer = model.begin(kv)
    got = [model.advance([answer])[0] for _ in range(n)]
    model.end(answer)
    return got


def from_text(model, text, n=24):
    return tokens(model, model.prefill(text), n)


@st.composite
def contexts(draw):
    """Talk in which few keys are defined again and again, with values of all widths and lengths, and some are asked for."""
    key = st.sampled_from(["K", "KEY-1", "KEY-12", "a.b", "ключ", "k:"])
    value = st.one_of(
        st.text(st.characters(blacklist_categories=("Z", "C")), min_size=1, max_size=50),
        st.text("vV-.,", min_size=1, max_size=50),
    )
    said = st.one_of(
        st.builds("{}={} ".format, key, value),
        st.builds("The value of {} is {}. ".format, key, value),
        st.builds("What is {}? ".format, key),
        st.just(f"\n{USER_MARK}"),
        st.text(max_size=20),
    )
    return "".join(draw(st.lists(said, max_size=12)))


@settings(max_examples=150, deadline=None)
@given(contexts())
@example(f"K={'日本語é' * 12}. K?")
@example(f"K={'é' * 15} K?")
@example(f"K={'日' * 15}v K?")
@example(f"K={'v' * 15} K?")
@example(f"K={'v' * 16} K?")
@example("K=a K=... K?")
@example("K=a\ud800b K?")
def test_the_shortcut_the_oracle_and_the_kernel_give_the_same_tokens(context):
    right = from_text(SHORTCUT, context)
    assert from_text(ORACLE, context) == right
    assert from_text(KERNEL, context) == right


def test_recalls_any_of_a_hundred_rounds_over_a_hundred_thousand_bytes():
    chance = random.Random(5)
    rounds = [f"{USER_MARK}The value of KEY-{n} is VAL-{n * 7919:08x}. {'talk ' * 200}\n" for n in range(100)]
    for asked in chance.sample(range(100), 3):
        context = "".join(rounds) + f"{USER_MARK}What is the value of KEY-{asked}?\n"
        assert len(context) > 100_000
        assert from_text(KERNEL, context, 2) == [f"VAL-{asked * 7919:08x}", " as"]


def test_answers_of_many_lengths_go_on_together_as_they_do_alone():
    texts = [f"{'talk ' * 30 * n}K{n}={'v' * 7 * n}, K{n}?" for n in range(1, 12)]
    alone = [from_text(KERNEL, text, 8) for text in texts]
    answers = [KERNEL.begin(KERNEL.prefill(text)) for text in texts]
    together = list(zip(*(KERNEL.advance(answers) for _ in range(8)), strict=True))
    for answer in answers:
        KERNEL.end(answer)
    assert [list(each) for each in together] == alone


# ---- what is lost or altered shows


def pages_of(kv):
    """The header, and the pages as numbers that can be changed."""
    header = len(kv) % PAGE_BYTES
    return kv[:header], np.frombuffer(kv, np.float32, offset=header).reshape(-1, 2, PAGE, WIDTH).copy()


def holding(text, word):
    """The page that holds the first byte of *word*; row 0 of all is the sink."""
    return (1 + text.encode().index(word.encode())) // PAGE


def zero(page):
    page[:] = 0


def flip_keys(page):
    page[0] *= -1


def flip_values(page):
    page[1] *= -1


def flip_one_bit_of_each_value(page):
    page[1, :, 8:16] *= -1


def leave_garbage(page):
    page[:] = np.nan


@pytest.mark.parametrize("model", [ORACLE, KERNEL], ids=["oracle", "kernel"])
@pytest.mark.parametrize("damage", [zero, flip_keys, flip_values, flip_one_bit_of_each_value, leave_garbage])
def test_a_damaged_page_changes_the_answer(model, damage):
    header, pages = pages_of(model.prefill(PLANTED))
    damage(pages[holding(PLANTED, "VAL-7abc")])
    assert tokens(model, header + pages.tobytes(), 1) != ["VAL-7abc"]


def test_a_page_that_is_dropped_or_takes_another_ones_place_changes_the_answer():
    header, pages = pages_of(KERNEL.prefill(PLANTED))
    lost = holding(PLANTED, "VAL-7abc")
    pages[lost] = pages[lost + 1]
    assert tokens(KERNEL, header + pages.tobytes(), 2) == [" as", " was"]


def test_pages_may_lie_in_any_order_because_keys_are_found_by_what_they_say():
    header, pages = pages_of(KERNEL.prefill(PLANTED))
    whole = pages[:-1][::-1]
    assert tokens(KERNEL, header + whole.tobytes() + pages[-1:].tobytes(), 1) == ["VAL-7abc"]


@pytest.mark.parametrize("cut", [0, 3, 16, PAGE_BYTES, -1])
def test_refuses_kv_that_is_not_whole(cut):
    with pytest.raises(ValueError, match="no KV of this model"):
        KERNEL.begin(KERNEL.prefill(PLANTED)[:cut])


def test_refuses_kv_of_the_shortcut():
    with pytest.raises(ValueError, match="no KV of this model"):
        KERNEL.begin(SHORTCUT.prefill(PLANTED))


# ---- pages


def test_no_page_is_kept_whatever_the_order_of_begin_advance_and_end():
    chance = random.Random(3)
    model = AttentionModel(SplitK(8))
    live = []
    for _ in range(300):
        act = chance.random()
        if act < 0.4:
            live.append(model.begin(model.prefill("talk " * chance.randrange(100) + "K=v K?")))
        elif act < 0.7:
            model.advance(chance.sample(live, chance.randrange(len(live) + 1)))
        elif live:
            gone = live.pop(chance.randrange(len(live)))
            model.end(gone)
            model.end(gone)
        held = [page for answer in live for page in answer.pages.numbers]
        assert len(set(held)) == len(held) == model.pool.n_taken
    for answer in live:
        model.end(answer)
    assert model.pool.n_taken == 0


def test_rows_that_were_there_stay_when_the_pool_grows():
    model = AttentionModel(SplitK(8))
    first = model.begin(model.prefill(PLANTED))
    model.advance([first])
    others = [model.begin(model.prefill("talk " * 500)) for _ in range(10)]
    before = len(model.pool.keys)
    model.advance(others)
    assert len(model.pool.keys) > before
    first.offset, first.copying = 0, True
    assert model.advance([first]) == ["VAL-7abc"]


def test_generated_tokens_join_the_context():
    answer = KERNEL.begin(KERNEL.prefill(PLANTED))
    said = "".join(islice((KERNEL.advance([answer])[0] or "" for _ in range(40)), 40))
    assert answer.pages.n_rows == 1 + len(PLANTED) + len(said)
    last = answer.pages.numbers[-1], (answer.pages.n_rows - 1) % PAGE
    assert (KERNEL.pool.values[*last, 0, ::8] > 0).tolist() == [
        bool(ord(said[-1]) >> bit & 1) for bit in range(7, -1, -1)
    ]
    KERNEL.end(answer)


def test_a_page_given_back_twice_is_a_bug():
    pool = Pool(WIDTH)
    page = pool.take()
    pool.give(page)
    with pytest.raises(BugError, match="twice"):
        pool.give(page)
