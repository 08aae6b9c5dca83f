"""What every page of ours carries, so that it is known again."""

__all__ = ["MARK"]

MARK = '<meta name="generator" content="vindicate">'
