"""Bytes ↔ events: SSE, OpenAI streams, Prometheus text, tcp_info; pure, no input or output."""
