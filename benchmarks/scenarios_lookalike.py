"""Healthy chains that look like a fault, and a fault after everybody has left."""

from diagnosis import STARVED, Scenario

__all__ = ["SCENARIOS"]

SCENARIOS = (
    Scenario("slow_model", "none", plain=("--itl", "3.3", "--tokens", "40"), clients=("busy",), may_abstain=True),
    Scenario("slow_model_alone", "none", plain=("--itl", "3.3", "--tokens", "40"), clients=(), may_abstain=True),
    Scenario("limit_and_no_bytes", "none", plain=("--delay-first", "18", "--tokens", "5"), proxy=("--fault", "none", "--slots", "4"), clients=("busy",), may_abstain=True),
    Scenario("busy_beside_idle", "none", clients=("idle", "busy")),
    Scenario("starved_left", "proxy", "proxy", "proxy.connector_starvation", proxy=STARVED, clients=("leave",), decode_cleared=True),
    Scenario("plain_starved_left", "proxy", "proxy", "proxy.connector_starvation", plain=("--itl", "0.05", "--tokens", "40"), proxy=STARVED, clients=("leave",)),
)  # fmt: skip
