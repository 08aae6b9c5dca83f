"""Units, errors, times and redaction: what every room stands on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vindicate import errors
from vindicate.clock import parse_time
from vindicate.errors import MisuseError, VindicateError
from vindicate.redact import REDACTED, is_secret_name, redact_argv, redact_json, redact_text, redact_value
from vindicate.units import format_bytes, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("250ms", 0.25), ("5m", 300), ("12h", 43200), ("2d", 172800), ("7", 7), (" 1.5 min ", 90)],
)
def test_reads_durations_people_write(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "-3s", "10 parsecs", "1e9", "٣s"])
def test_refuses_what_is_no_duration_and_shows_it(text):
    with pytest.raises(MisuseError) as caught:
        parse_duration(text)
    assert repr(text) in caught.value.problem


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.34, "340 ms"),
        (8.24, "8.2 s"),
        (125, "2 m 05 s"),
        (11400, "3 h 10 m"),
        (99.96, "1 m 40 s"),
        (3599.6, "1 h 00 m"),
    ],
)
def test_writes_durations_as_a_person_says_them(seconds, text):
    assert format_duration(seconds) == text


def test_writes_bytes_with_decimal_units():
    assert [format_bytes(n) for n in (812, 48_200, 1_300_000)] == ["812 B", "48.2 kB", "1.3 MB"]


def test_times_are_normalised_to_utc():
    assert parse_time("2026-11-30T22:14:00+02:00") == "2026-11-30T20:14:00.000000Z"
    with pytest.raises(MisuseError, match="yesterday"):
        parse_time("yesterday")


def test_every_error_of_the_tree_has_an_exit_code_of_the_contract():
    classes = [getattr(errors, name) for name in errors.__all__]
    assert all(issubclass(kind, VindicateError) for kind in classes)
    assert {kind.exit_code for kind in classes} <= {1, 2, 3, 4, 70}
    for kind in classes:
        assert kind.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize(
    "name",
    """HF_TOKEN api_key --api-key admin_api_key OPENAI_API_KEY db-password AWS_SECRET_ACCESS_KEY Authorization ADMIN_TOKEN MINIO_TOKEN
    NEW_RELIC_TOKEN KV_PASSWORD AZURE_KV_SECRET accessToken PGPASSWORD PASSPHRASE MASTER_KEY API_TOKENS apiKey ssh-private-key
    SESSION_COOKIE key token x-api-key GITHUB_PAT client_secret CREDENTIALS""".split(),
)
def test_knows_names_of_secrets(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    """max_total_num_tokens token_usage tokenizer_path --max-tokens kv_cache_dtype SGLANG_SM120_MMA_TARGET_CTAS num_reserved_decode_tokens
    tokens eos_token_id num_key_value_heads routing_keys_active token_ratio new_token_ratio author monkey tokens_per_s PATH keyboard
    output_tok_per_s skip_tokenizer_init --key-value-heads""".split(),
)
def test_leaves_names_that_only_look_like_secrets(name):
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer planted-s3cret-1",
        "curl -H 'authorization: bearer planted-s3cret-1' http://x",
        "Authorization: Token planted-s3cret-1",
        "{'authorization': 'Basic planted-s3cret-1'}",
        "OPENAI_API_KEY=planted-s3cret-1 python serve.py",
        "export GITHUB_TOKEN='planted-s3cret-1'",
        "token=planted-s3cret-1",
        "serve --token planted-s3cret-1 --port 1",
        "serve --admin-token=planted-s3cret-1",
        "MASTER_KEY=planted-s3cret-1",
        "Cookie: session=planted-s3cret-1; theme=planted-s3cret-2",
        "Set-Cookie: id=planted-s3cret-1",
        '"api_key": "planted-s3cret-1"',
        "{'hf_token': 'planted s3cret with blanks'}",
        "http://user:planted-s3cret-1@host:80/",
        "http://planted-s3cret-1@host/v1",
        "GET /v1/models?key=planted-s3cret-1&x=1",
        "token sk-planted-s3cret-1",
        "github_pat_11PLANTEDs3cretAAAAAAAA",
        "password: planted-s3cret-1",
        "http://h:1/v1?api_key=planted-s3cret-1&token=planted-s3cret-2",
        "note: token=planted-s3cret-1",
        "env: {api_key: planted-s3cret-1}",
    ],
)
def test_no_planted_secret_stays_in_text(text):
    assert "s3cret" not in redact_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "max_total_num_tokens=4096, token_usage: 0.31, tokens: 45",
        "Prefill bootstrap failed for rid=3f2a room=881, kv_cache_dtype: auto",
        "http://127.0.0.1:30001/v1/models?dp_rank=0",
        "python -m sglang.launch_server --tokenizer-path m --max-total-tokens 32768 --port 30000",
    ],
)
def test_leaves_text_without_secrets_as_it_is(text):
    assert redact_text(text) == text


def test_hides_option_values_in_both_forms():
    assert redact_argv(["serve", "--api-key", "abc", "--model=m", "--admin-api-key=xyz", "--admin-token", "t", "--port", "1"]) == [
        "serve", "--api-key", REDACTED, "--model=m", f"--admin-api-key={REDACTED}", "--admin-token", REDACTED, "--port", "1",
    ]  # fmt: skip


def test_hides_the_second_of_a_pair_whose_first_says_secret():
    assert redact_json([["authorization", "abc"], ["le", "0.5"]]) == [["authorization", REDACTED], ["le", "0.5"]]


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("API_TOKEN", "abc", REDACTED),
        ("KNOB", "256", "256"),
        ("KNOB", "sk-planted1234567", REDACTED),
        ("API_TOKEN", None, None),
        ("api_key_env", "DSV4_KEY", "DSV4_KEY"),
    ],
)
def test_a_value_is_hidden_for_its_name_or_for_its_look(name, value, shown):
    assert redact_value(name, value) == shown


def test_hides_all_that_stands_under_an_unmistakable_name():
    assert redact_json({"cookies": {"sid": "x"}, "password": 1234, "secret": False, "credentials": None}) == {
        "cookies": REDACTED, "password": REDACTED, "secret": False, "credentials": None,
    }  # fmt: skip


def test_hides_secrets_at_any_depth_of_json():
    out = redact_json(
        {"api_key": "abc", "args": [{"admin_api_key": "x", "port": 1}], "launch": "--api-key abc", "hf_token": None}
    )
    assert out == {
        "api_key": REDACTED,
        "args": [{"admin_api_key": REDACTED, "port": 1}],
        "launch": f"--api-key {REDACTED}",
        "hf_token": None,
    }


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_redaction_keeps_the_shape_of_json(value):
    out = redact_json(value)
    assert type(out) is type(value)
    assert redact_json(out) == out
