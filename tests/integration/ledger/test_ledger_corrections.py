"""A correction keeps what it does not mention."""

from vindicate.cli.claim import claim
from vindicate.ledger.state import Book
from vindicate.ledger.store import Ledger


def test_a_corrected_claim_stays_no_hazard_until_it_is_told(tmp_path):
    place = tmp_path / "ledger.db"

    def hazard(*words):
        assert claim.main(["add", *words, "--id", "H1", "--ledger", str(place)], standalone_mode=False) == 0
        with Ledger.open(place, read_only=True) as ledger:
            return Book.from_facts(ledger.facts()).claims["H1"].claim.hazard

    assert not hazard("it is slow", "--no-hazard")
    assert not hazard("it is slower")
    assert hazard("it hangs", "--hazard")
    assert hazard("it does hang")
