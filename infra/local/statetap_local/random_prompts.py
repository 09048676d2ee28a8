"""Prompts of random ids, as benchmarks send them."""

import random
from array import array

from statetap_contract import Prompt


def random_prompt(generator: random.Random, num_tokens: int, vocab_size: int) -> Prompt:
    """A prompt that as good as surely shares no prefix with any other, and has no loss mask.

    Args:
        generator: makes its ids.
        num_tokens: ids that it has.
        vocab_size: of the model; ids are from 2 to below it.
    """
    return Prompt(array("i", (generator.randrange(2, vocab_size) for _ in range(num_tokens))), ())
