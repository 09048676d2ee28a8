"""What one worker is told, once, by its command line."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

#: A worker's name becomes part of file names.
WORKER_NAME_FORM: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")

#: In the folder of runs: what its workers must know of one another. No run has such a name.
WORKERS_FOLDER: Final = ".workers"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """One worker, pinned beside one server."""

    #: Base URL of the patched SGLang server.
    server_url: str
    #: It may hold a password, which no log shall show.
    redis_url: str = field(repr=False)
    #: The server's dump folder, as this host sees it.
    dumps: Path
    #: Holds one folder per run; shards and ledger go to ``<runs>/<run>/``.
    runs: Path
    #: Stable name of this worker, unique among all that share ``runs``.
    name: str
    #: Processes, hence prompts in flight.
    num_processes: int
    #: Size at which a shard is closed and the next one begun.
    shard_bytes: int
    #: Host and port on which metrics are served, None where they are not.
    metrics_address: tuple[str, int] | None = None
    #: Key of the server, None where it asks for none.
    api_key: str | None = field(default=None, repr=False)
