"""A question → a design → trials → Effects."""
