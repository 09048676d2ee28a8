"""What a folder of shards holds: all samples, each once."""

from dataclasses import dataclass
from pathlib import Path

from statetap_contract import CaptureSpec, CheckError

from statetap_store.layout import token_bytes
from statetap_store.sample import SampleEntry
from statetap_store.shard_file import ShardFile
from statetap_store.shard_names import shard_paths


@dataclass(frozen=True, slots=True)
class RunIndex:
    """The samples of a folder at one moment, each key once."""

    #: By shard name, then by row. Of samples with the same key the first one is here.
    samples: tuple[SampleEntry, ...]
    #: Further samples with a key that is here.
    num_duplicates: int
    num_tokens: int
    #: Bytes of the samples' states, ids and masks.
    num_bytes: int
    #: The capture spec of all shards, None if there is no shard.
    spec: CaptureSpec | None
    #: The shards, by name.
    shards: tuple[Path, ...]


def scan_run(folder: Path) -> RunIndex:
    """Reads the index of every shard in a folder; a missing folder holds no shards.

    Raises:
        CheckError: kind ``spec-mismatch``, two shards have different capture specs; or one of
            ``ShardHeader.decode``.
    """
    samples: dict[str, SampleEntry] = {}
    num_duplicates = num_bytes = 0
    spec: CaptureSpec | None = None
    shards = tuple(shard_paths(folder))
    for path in shards:
        with ShardFile.open(path) as shard:
            spec = spec or shard.header.spec
            if shard.header.spec != spec:
                raise CheckError(
                    "spec-mismatch",
                    f"{path} and {shards[0]} hold states of different capture specs: give every "
                    "capture spec a run folder of its own",
                )
            for row in shard.load_index().samples:
                entry = SampleEntry.of(row, path)
                if entry.key in samples:
                    num_duplicates += 1
                else:
                    samples[entry.key] = entry
                    num_bytes += entry.num_tokens * token_bytes(spec)
    num_tokens = sum(entry.num_tokens for entry in samples.values())
    return RunIndex(tuple(samples.values()), num_duplicates, num_tokens, num_bytes, spec, shards)
