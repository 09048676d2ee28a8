"""A run of the size of a real job: 300 samples among the tests, 37,312 by ``make soak``."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import pytest
from statetap_contract import queue_name
from statetap_local.services import LocalRedis, LocalServer, LocalWorker
from statetap_worker.asking.server import Server

from .soak_prompts import SoakPrompts, stored_rows, write_prompts, wrong_samples
from .soaking import Soak

_NUM_IN_FLIGHT: Final = 16

#: Tokens that the server of these tests computes at a time.
_CHUNK: Final = 256

#: How often the account is looked at on the way.
_NUM_LOOKS: Final = 6

_NUM_CROSSCHECKED: Final = 200


@pytest.mark.timeout(4 * 3600)
def test_a_job_of_real_size(
    server: LocalServer,
    dumps: Path,
    local_redis: LocalRedis,
    tiny_model: Path,
    tmp_path: Path,
    pytestconfig: pytest.Config,
) -> None:
    """Every planned sample is stored once, with its own ids; the account adds up all the while."""
    num_samples: int = pytestconfig.getoption("--soak-samples")
    seed: int = pytestconfig.getoption("--soak-seed")
    prompts = write_prompts(tmp_path / "prompts.jsonl", num_samples, seed)
    before = set(dumps.iterdir())
    with local_redis.client() as client:
        client.flushall()  # what other tests left
    soak = Soak(tmp_path, local_redis, num_samples)
    soak.command(
        *("plan", tmp_path / "prompts.jsonl", "--run", soak.run),
        *("--model", tiny_model, "--server", server.url),
    )
    worker = LocalWorker(
        server,
        local_redis,
        dumps=dumps,
        runs=soak.run.parent,
        log=tmp_path / "worker.log",
        name="soak",
        num_processes=_NUM_IN_FLIGHT,
        # So small that shards are filled and begun on the way.
        arguments=["--shard-gib=0.1"],
    )
    queue = _queue_of(server)
    feeder = soak.enqueue()
    try:
        for part in range(1, _NUM_LOOKS + 1):
            if not soak.wait_for(num_samples * part // _NUM_LOOKS, worker):
                break
            soak.look()
        else:
            soak.expect("exit code of enqueue", feeder.wait(60), 0)
            worker.wait_until(lambda: not local_redis.num_messages(queue), 60)
    finally:
        feeder.stop()
        worker.stop()
    soak.expect("most in flight", soak.most_in_flight, _NUM_IN_FLIGHT)
    soak.expect("exit code of the worker", worker.wait(0), 0)
    soak.expect("dumps left over", set(dumps.iterdir()) - before, set())
    failed = Counter(re.findall(r"kind=(\S+)", worker.log.read_text()))
    soak.expect("tries that failed", failed, Counter())
    lines = [
        f"seed {seed}: {num_samples:,} samples, {prompts.num_tokens:,} tokens",
        f"{prompts.num_longer_than(_CHUNK):,} prompts are longer than a chunk",
        f"{prompts.num_behind_system:,} prompts begin with the same system prompt",
        f"up to {soak.most_in_flight} in flight; status added up {soak.num_looks} times",
        *_judge_shards(soak, prompts),
        *_judge_states(soak, tiny_model, seed),
        *soak.faults,
        f"verdict: {'bad' if soak.faults else 'good'}, {len(soak.faults)} faults",
    ]
    print("", *lines, sep="\n")  # noqa: T201  the result of make soak
    assert soak.faults == []
    # Gigabytes, which nobody needs when all is well.
    shutil.rmtree(soak.shards)


def _queue_of(server: LocalServer) -> str:
    client = Server(server.url)
    return queue_name(client.handshake().spec.digest)


def _judge_shards(soak: Soak, prompts: SoakPrompts) -> Iterator[str]:
    """Holds index rows, ids and masks against the plan's keys and the prompts that were made."""
    stored = stored_rows(soak.shards)
    planned = pq.read_table(soak.run / "plan.parquet", columns=["key"])["key"].to_pylist()
    soak.expect("index rows", stored.keys.total(), len(prompts.masks))
    soak.expect("keys that were not planned", stored.keys.keys() - set(planned), set())
    soak.expect("keys that are not stored", set(planned) - stored.keys.keys(), set())
    soak.expect("tokens", stored.num_tokens, prompts.num_tokens)
    soak.expect("samples with other ids or masks", wrong_samples(soak.shards, prompts), [])
    seconds = (stored.last_ns - stored.first_ns) / 1e9
    yield f"stored {stored.keys.total():,}, planned {len(planned):,}, each key once"
    yield (
        f"{seconds:.0f} s from the first to the last: {stored.keys.total() / seconds:.1f} "
        f"samples/s, {stored.num_tokens / seconds:,.0f} tokens/s, "
        f"{stored.num_bytes / seconds / 1e6:.1f} MB/s; load of the machine {os.getloadavg()[1]:.1f}"
    )


def _judge_states(soak: Soak, model: Path, seed: int) -> Iterator[str]:
    """Has ``verify`` and ``crosscheck`` look at the run."""
    verdict = soak.command("verify", soak.run)
    num_verified = sum(shard["num_samples"] for shard in verdict["shards"])
    soak.expect("verify", (verdict["is_good"], num_verified), (True, soak.num_samples))
    yield f"verify: {num_verified:,} samples in {len(verdict['shards'])} shards"
    checked = soak.command(
        *("crosscheck", soak.run, "--model", model),
        *("--samples", _NUM_CROSSCHECKED, "--seed", seed),
    )
    num_checked = len(checked["keys"])
    soak.expect("crosscheck", (checked["is_good"], num_checked), (True, _NUM_CROSSCHECKED))
    largest = max(slot["max_absolute"] for slot in checked["slots"])
    yield f"crosscheck: {num_checked} random samples differ from HF by at most {largest}"
