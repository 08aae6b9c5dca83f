"""vindicate.toml, or the sockets of this host → a Stack; what each engine calls its metrics, endpoints and processes."""
