"""Numbers with their nouns, for people."""


def counted(number: int, noun: str) -> str:
    """``1 shard``, ``1,200 shards``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
