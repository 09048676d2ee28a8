"""A plain HTTP client of an SGLang server: nothing is captured. In a process of its own.

    python -m statetap_local.bare_client URL NUM_IN_FLIGHT < prompts.json

Prints the seconds from the first request to the last answer.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import httpx
from statetap_contract import Prompt

#: Seconds to wait for an answer; on a CPU that others use too, long prompts take minutes.
_TIMEOUT_S: Final = 600.0


def send_bare(url: str, prompts: Sequence[Prompt], num_in_flight: int) -> float:
    """Has the server compute the prompts; seconds from the first request to the last answer.

    Raises:
        subprocess.CalledProcessError: a request failed.
    """
    ids = [prompt.token_ids.tolist() for prompt in prompts]
    command = [sys.executable, "-m", "statetap_local.bare_client", url, str(num_in_flight)]
    ended = subprocess.run(  # noqa: S603  this very module
        command, input=json.dumps(ids), stdout=subprocess.PIPE, text=True, check=True
    )
    return float(ended.stdout)


def main() -> None:
    """The process: sends what stands in its input."""
    url, num_in_flight = sys.argv[1], int(sys.argv[2])
    bodies = [
        # As a worker asks: prefill alone is wanted.
        {"input_ids": ids, "sampling_params": {"max_new_tokens": 0, "temperature": 0}}
        for ids in json.load(sys.stdin)
    ]
    with (
        httpx.Client(base_url=url, timeout=_TIMEOUT_S, trust_env=False) as client,
        ThreadPoolExecutor(num_in_flight) as threads,
    ):
        begun = time.perf_counter()
        for answer in threads.map(lambda body: client.post("/generate", json=body), bodies):
            answer.raise_for_status()
        print(time.perf_counter() - begun)


if __name__ == "__main__":
    main()
