"""Proxies that misbehave on request, and the story, replayed."""
