"""The facts that pass between rooms: frozen, typed, and nothing else."""
