"""The run folder: where a run's files lie."""

import json
from dataclasses import dataclass
from pathlib import Path

from statetap_contract import RUN_NAME_FORM, MissingError, UsageError
from statetap_store.find_shards import find_shards
from statetap_store.shard_names import shard_paths

from statetap_producer.run.durable_file import durable_file
from statetap_producer.run.run_record import RunRecord


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run. The folder's base name is the run's name.

    Raises:
        UsageError: kind ``run-name``: the base name cannot be a run's.
    """

    path: Path

    def __post_init__(self) -> None:
        if not RUN_NAME_FORM.fullmatch(self.name):
            raise UsageError(
                "run-name",
                f"{self.name!r} cannot be a run's name; name the folder with up to 64 letters, "
                "digits, '.', '_' and '-', a letter or digit first",
            )

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def record_file(self) -> Path:
        return self.path / "run.json"

    @property
    def plan_file(self) -> Path:
        return self.path / "plan.parquet"

    @property
    def left_out_file(self) -> Path:
        """Rows of the dataset that are not in the plan, a JSON object each."""
        return self.path / "left-out.jsonl"

    @property
    def shards(self) -> Path:
        return self.path / "shards"

    def shard_files(self) -> list[Path]:
        """The shards there are now, by name."""
        return shard_paths(self.shards)

    @property
    def ledger(self) -> Path:
        return self.path / "ledger"

    @property
    def tries(self) -> Path:
        """Tries that failed, as workers leave them."""
        return self.path / "tries"

    @property
    def is_planned(self) -> bool:
        """``run.json`` is written last, so it stands for a complete plan."""
        return self.record_file.is_file()

    def read_record(self) -> RunRecord:
        """Reads ``run.json``.

        Raises:
            MissingError: kind ``run-missing``: no plan was made here.
            UsageError: kind ``run-unreadable``: not a run record of this version, or one that
                was made under another name.
        """
        if not self.is_planned:
            raise MissingError(
                "run-missing",
                f"{self.path} holds no run.json; make a plan first: statetap plan DATASET "
                f"--run {self.path} --model MODEL_DIR",
            )
        try:
            record = RunRecord.from_json(json.loads(self.record_file.read_bytes()))
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(
                "run-unreadable", f"{self.record_file} is not a run record: {error}"
            ) from error
        if record.name != self.name:
            raise UsageError(
                "run-unreadable",
                f"{self.path} was planned as run {record.name!r}; give the folder that name back",
            )
        return record

    def write_record(self, record: RunRecord) -> None:
        with durable_file(self.record_file) as temporary:
            temporary.write_text(json.dumps(record.to_json(), indent=2) + "\n")


def shards_at(*paths: Path) -> list[Path]:
    """The shards that a person means by some paths: as ``find_shards``, and runs are real ones.

    Raises:
        MissingError, UsageError: a path is a folder that is no run's and holds no shards.
    """
    return find_shards(*(place for path in paths for place in _place_of_shards(path)))


def _place_of_shards(path: Path) -> list[Path]:
    if not path.is_dir() or is_plain_folder(path):
        return [path]
    run = RunFolder(path)
    run.read_record()
    return [run.shards] if run.shards.is_dir() else []


def is_plain_folder(path: Path) -> bool:
    """Whether a folder holds shards and is no run's: a copy, or the folder in a run's."""
    return not (path / "run.json").exists() and bool(find_shards(path))


def run_of_shard(shard: Path) -> Path | None:
    """The folder of the run whose shard this is, None where none is known."""
    folder = shard.absolute().parent.parent
    return folder if (folder / "run.json").is_file() else None
