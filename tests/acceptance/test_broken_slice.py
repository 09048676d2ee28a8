"""Rows that are cut at the wrong place are caught by the token ids that travel with them."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from statetap_local.services import LocalServer

from .capturing import ask, assert_no_leftovers, generate, jobs_of, prompts_of, write_plugin

#: A cursor that is off by one: every request is given the rows that begin one further on.
OFF_BY_ONE = """
def register():
    import torch
    from statetap_patch.capture import Capture
    original = Capture.take_rows

    def take_rows(self, *, input_ids, slots, **others):
        slots = tuple(torch.roll(slot, -1, 0) for slot in slots)
        original(self, input_ids=torch.roll(input_ids, -1, 0), slots=slots, **others)

    Capture.take_rows = take_rows
"""


@pytest.fixture(scope="module")
def dumps() -> Iterator[Path]:
    with TemporaryDirectory(prefix="statetap-test-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def server(
    tiny_model: Path, dumps: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalServer]:
    """A server whose patch takes every row from one place further on."""
    service = LocalServer(
        tiny_model,
        dumps,
        tmp_path_factory.mktemp("server") / "server.log",
        arguments=["--max-total-tokens=16384", "--chunked-prefill-size=256"],
        environment=write_plugin(tmp_path_factory.mktemp("plugin"), OFF_BY_ONE),
    )
    yield service
    service.stop()


def test_a_cursor_that_is_off_by_one(server: LocalServer, dumps: Path) -> None:
    """100 of 100 captures fail, and leave nothing; plain requests go on."""
    lengths = random.Random(70).choices(range(2, 400), k=100)
    prompts = prompts_of(lengths, 70)
    for ids in prompts:
        ids[1] = ids[0] + 1 if ids[0] == ids[1] else ids[1]  # the first row is another's for sure
    jobs = jobs_of(server.url, prompts)
    before = set(dumps.iterdir())
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda job: ask(server.url, job), jobs))
    caught = [
        answer
        for answer in answers
        if answer.status >= 500 and "were computed from other tokens" in answer.text
    ]
    assert len(caught) == 100
    assert_no_leftovers(dumps)
    assert set(dumps.iterdir()) == before
    assert generate(server, prompts[0], max_new_tokens=8)["meta_info"]["completion_tokens"] == 8
