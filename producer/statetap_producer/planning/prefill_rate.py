"""Measures how fast a server computes prompts, for the estimate of a plan.

The server's bare prefill is what bounds an extraction; capturing costs a few percent of it.
"""

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import httpx
from statetap_contract import MissingError, Prompt
from statetap_contract.api_key import api_key, authorization

#: Prompts at the server at once, as with a worker of as many processes.
_IN_FLIGHT: Final = 16

#: Seconds after which no further prompt is sent.
_SEND_S: Final = 6.0

#: Seconds to wait for an answer; the longest prompts on a CPU take minutes.
_TIMEOUT_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class PrefillRate:
    """What was measured."""

    tokens_per_s: float
    num_prompts: int
    num_tokens: int
    seconds: float


def measure_prefill(url: str, prompts: Sequence[Prompt], vocab_size: int) -> PrefillRate:
    """Has a server compute prompts for some seconds, 16 at a time.

    Args:
        url: the server; it answers ``/generate`` as SGLang does.
        prompts: drawn from the plan, at least one. Their first token is replaced by a random one,
            so that no prefix cache answers for the model.
        vocab_size: of the model.

    Raises:
        UsageError: kind ``api-key``.
        MissingError: kind ``server-unreachable``: it does not answer, or refuses a prompt.
    """

    def compute(prompt: Prompt) -> int:
        """Tokens computed; none once the time is over."""
        if time.monotonic() - begun > _SEND_S:
            return 0
        first = random.randrange(vocab_size)  # noqa: S311 - no secret
        answer = client.post(
            f"{url.rstrip('/')}/generate",
            json={
                "input_ids": [first, *prompt.token_ids[1:]],
                "sampling_params": {"max_new_tokens": 1, "temperature": 0},
            },
        )
        answer.raise_for_status()
        return prompt.num_tokens

    try:
        # A server of one's own is not reached through the proxy that the environment names.
        with (
            httpx.Client(
                headers=authorization(api_key()), trust_env=False, timeout=_TIMEOUT_S
            ) as client,
            ThreadPoolExecutor(_IN_FLIGHT) as threads,
        ):
            begun = time.monotonic()
            lengths = [length for length in threads.map(compute, prompts) if length]
            seconds = time.monotonic() - begun
    except httpx.HTTPError as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MissingError(
            "server-unreachable",
            f"the server at {url} does not compute prompts ({reason}); look into its log",
        ) from error
    return PrefillRate(sum(lengths) / seconds, len(lengths), sum(lengths), seconds)
