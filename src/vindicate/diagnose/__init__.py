"""Observations → one Diagnosis; pure."""
