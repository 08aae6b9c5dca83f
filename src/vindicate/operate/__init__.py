"""A Change → backup, write, restart, verify, watch; or undone."""
