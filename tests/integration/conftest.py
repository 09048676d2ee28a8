"""What several tests of a worker share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from statetap_local.services import LocalRedis

from .bench import Bench
from .stand_in_server import StandInServer


@pytest.fixture
def bench(tmp_path: Path, local_redis: LocalRedis) -> Iterator[Bench]:
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    with local_redis.client() as client:
        client.flushall()
    with StandInServer(dumps) as server:
        bench = Bench(tmp_path, local_redis, server)
        yield bench
        bench.worker.stop()
