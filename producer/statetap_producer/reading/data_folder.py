"""Which files of a folder are the dataset's."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from statetap_contract import CheckError, MissingError, UsageError

from statetap_producer.reading.data_file import DataFile, missing

#: What data files are called, before a compression's suffix.
_SUFFIXES: Final = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow")

#: Suffixes of compressed files.
_PACKED: Final = (".gz", ".zst")

#: What a run writes beside its plan; one is enough to tell it from a data file of that name.
_RUN_PLAN: Final = "plan.parquet"
_RUN_RECORDS: Final = ("run.json", "left-out.jsonl")

#: What ``datasets`` writes beside its data.
_RECORDS: Final = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")


def files_of_folder(folder: Path) -> list[DataFile]:
    """The data files below a folder, sorted by relative path; what is hidden is left out.

    Folders of runs are passed over, so that a run may lie beside the data that it was made of.
    A folder that ``datasets`` has saved consists of the Arrow files that its ``state.json`` lists.

    Raises:
        MissingError: kind ``dataset-missing``: no data file, or one that cannot be read.
        UsageError: kind ``dataset-has-splits``.
        CheckError: kind ``dataset-damaged``: what ``datasets`` has saved cannot be understood.
    """
    try:
        found = sorted((path.relative_to(folder).as_posix(), path) for path in _data_paths(folder))
    except OSError as error:
        raise missing(Path(error.filename or folder), error) from error
    if not found:
        looked_for = ", ".join(_SUFFIXES)
        raise MissingError(
            "dataset-missing",
            f"no data file below {folder}; looked for {looked_for}, with "
            f"{' or '.join(_PACKED)} behind or without; folders of runs are passed over",
        )
    return [DataFile.find(path, name) for name, path in found]


def _data_paths(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Goes into linked folders too, but not round in circles."""
    if (place := folder.resolve()) in above:
        return
    if _is_run(folder):
        return
    if (folder / "dataset_dict.json").exists():
        folder = _only_split(folder)
    if (folder / "state.json").exists() and (folder / "dataset_info.json").exists():
        yield from _saved_paths(folder)
        return
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _data_paths(path, above | {place})
        elif _is_data(path.name):
            yield path


def _is_run(folder: Path) -> bool:
    return (folder / _RUN_PLAN).exists() and any(
        (folder / record).exists() for record in _RUN_RECORDS
    )


def _is_data(name: str) -> bool:
    lowered = name.lower()
    for packed in _PACKED:
        lowered = lowered.removesuffix(packed)
    return lowered.endswith(_SUFFIXES) and name not in _RECORDS


def _only_split(folder: Path) -> Path:
    splits = _names(folder / "dataset_dict.json", "splits", ())
    if len(splits) != 1:
        raise UsageError(
            "dataset-has-splits",
            f"{folder} holds the splits {', '.join(splits)}; give one of them, "
            f"such as {folder / splits[0] if splits else 'FOLDER/train'}",
        )
    return folder / splits[0]


def _saved_paths(folder: Path) -> list[Path]:
    return [folder / name for name in _names(folder / "state.json", "_data_files", ("filename",))]


def _names(record: Path, field: str, way: tuple[str, ...]) -> list[str]:
    """The file names that a record lists under a field, each at the end of a way of keys."""
    try:
        names = json.loads(record.read_bytes())[field]
        if not isinstance(names, list):
            raise ValueError(field)
        return [_plain_name(name, way) for name in names]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise CheckError(
            "dataset-damaged",
            f"{record} does not list {field!r} as datasets writes it; save the dataset again",
        ) from error


def _plain_name(entry: Any, way: tuple[str, ...]) -> str:
    for key in way:
        entry = entry[key]
    if not isinstance(entry, str) or Path(entry).name != entry:
        raise ValueError(entry)
    return entry
