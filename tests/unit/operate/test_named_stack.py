"""`diagnose URL --stack FILE`: a stack file that is named is not passed over in silence."""

import pytest

from fakes.small_stack import write_small_stack
from vindicate.cli.diagnose import diagnose
from vindicate.errors import MisuseError


def test_a_url_that_the_named_stack_file_does_not_know_is_refused(tmp_path):
    stack = write_small_stack(tmp_path)
    with pytest.raises(MisuseError, match=r"no service of .* is at http://127") as caught:
        diagnose.main(["http://127.0.0.1:9", "--stack", str(stack.file), "--window", "1s"], standalone_mode=False)
    assert stack.service("front").url in caught.value.remedy


@pytest.mark.parametrize("text", ["32ok", "tok", "1.5tok", "32 toke"])
def test_a_token_budget_is_a_number_of_tokens(text, tmp_path):
    with pytest.raises(Exception, match="is no number of tokens"):
        diagnose.main(["--probe-budget", text], standalone_mode=False)
