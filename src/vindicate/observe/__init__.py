"""A live Stack → Observations: sockets, metrics, probes, processes, host, logs."""
