"""The reference stack: prefill, decode and router as real processes; a program of its own, started, never imported by the tool."""
