"""Samples → estimates → verdicts; pure."""
