"""What a run will take: bytes on disk and in shared memory, and hours."""

import random
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.filesize import decimal
from statetap_contract import DumpLayout, MissingError, ServerCapture

from statetap_producer.planning.prefill_rate import PrefillRate, measure_prefill
from statetap_producer.run.plan import Plan
from statetap_producer.run.run_folder import RunFolder
from statetap_producer.run.run_record import RunRecord

#: Prompts to draw for the measurement; a fast server computes some hundred in its time.
_MOST_PROMPTS: Final = 512


@dataclass(frozen=True, slots=True)
class ServerEstimate:
    """What one server was found to be able to do."""

    rate: PrefillRate
    #: The server's dump folder, on its host.
    dumps: Path
    host: str
    #: Bytes free in it; None where it is not on this machine.
    free_bytes: int | None


@dataclass(frozen=True, slots=True)
class Estimate:
    """Needs of a planned run against what is there."""

    #: Bytes that all samples take in shards, and bytes free on the disk of the run.
    shard_bytes: int
    free_bytes: int
    #: Bytes of shared memory that the longest prompt takes while it is in flight.
    dump_bytes: int
    #: None where no server was named.
    server: ServerEstimate | None


def estimate(
    run: RunFolder, record: RunRecord, url: str | None, capture: ServerCapture | None
) -> Estimate:
    """Looks at the disk, and has the server compute prompts of the plan for some seconds.

    Args:
        run: the run, planned.
        record: its record.
        url: the server, None where none is named.
        capture: what it said of itself.

    Raises:
        MissingError, CheckError: what ``Plan`` and ``measure_prefill`` raise.
    """
    spec, counts = record.inputs.spec, record.counts
    server = None
    if url is not None and capture is not None:
        sample = Plan(run.plan_file, counts.num_planned).sample(_MOST_PROMPTS)
        prompts = [row.prompt for row in sample]
        # A slow server computes only the first of them, and datasets are sorted now and then.
        random.Random(0).shuffle(prompts)  # noqa: S311 - no secret
        rate = measure_prefill(url, prompts, capture.vocab_size)
        dumps = Path(capture.dumps)
        is_here = capture.host == socket.gethostname() and dumps.is_dir()
        free_bytes = shutil.disk_usage(dumps).free if is_here else None
        server = ServerEstimate(rate, dumps, capture.host, free_bytes)
    return Estimate(
        shard_bytes=record.shard_bytes,
        free_bytes=_free_bytes(run.path),
        dump_bytes=DumpLayout(counts.max_tokens, spec.row_width, spec.dtype).file_bytes,
        server=server,
    )


def refuse_small_disk(run: RunFolder, record: RunRecord) -> None:
    """Raises MissingError, kind ``disk-too-small``, when the samples have no room."""
    if record.shard_bytes > (free_bytes := _free_bytes(run.path)):
        raise MissingError(
            "disk-too-small",
            f"the run needs {decimal(record.shard_bytes)} and the disk of {run.path} has "
            f"{decimal(free_bytes)} free; choose another disk or a smaller dataset, or give "
            "--elsewhere if the workers' shards lie on other disks",
        )


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free
