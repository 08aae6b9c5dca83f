"""Find who stalls in an LLM serving chain, measure a knob honestly, claw back what a wrong suspicion cost, restore it safely."""

__version__ = "0.1.0"
