"""Keys that came before."""

import random

from statetap_producer.planning.seen_keys import SeenKeys, raw_keys


def key(number: int) -> str:
    # The last byte is zero: an array of bytes may not take it for padding.
    return f"{number:030x}00"


def test_a_key_is_new_once() -> None:
    """Neither a repeat within a batch nor one from an earlier batch is new; order is kept."""
    seen = SeenKeys()
    assert seen.add(raw_keys([key(3), key(1), key(3)])).tolist() == [True, True, False]
    assert seen.add(raw_keys([key(2), key(3), key(0x300)])).tolist() == [True, False, True]
    assert seen.add(raw_keys([])).tolist() == []


def test_it_agrees_with_a_set() -> None:
    """Random batches of all sizes, many repeats: the same verdicts as Python's own set."""
    source = random.Random(1)
    seen, known = SeenKeys(), set[str]()
    for size in (1, 5, 300, 0, 2, 1000, 64, 64, 1, 700):
        batch = [key(source.randrange(1500)) for _ in range(size)]
        expected = []
        for one in batch:
            expected.append(one not in known)
            known.add(one)
        assert seen.add(raw_keys(batch)).tolist() == expected
