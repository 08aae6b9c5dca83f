"""Facts ↔ SQLite; the standing of every change (pure); Markdown documents."""
