"""A dataset of the Hugging Face hub, downloaded through ``datasets`` into its cache."""

import re
import sys
from pathlib import Path
from typing import Any, Final

from statetap_contract import MissingError, UsageError

from statetap_producer.reading.data_file import DataFile

#: What the name of such a dataset begins with.
HUB_PREFIX: Final = "hf:"

_NAME: Final = re.compile(
    HUB_PREFIX + r"(?P<repository>[\w.-]+/[\w.-]+)(?:/(?P<config>[\w.-]+))?"
    r"(?::(?P<split>[\w.-]+))?(?:@(?P<revision>[\w./-]+))?"
)

#: The hub is given up after so long. ``datasets`` itself tries for most of a minute.
_TIMEOUT_S: Final = 10.0


def files_of_hub(source: str) -> list[DataFile]:
    """The Arrow files of one split, at the commit that the revision stands for now.

    Args:
        source: ``hf:OWNER/NAME[/CONFIG][:SPLIT][@REVISION]``; the split is ``train`` where none is
            given, the revision the newest.

    Raises:
        UsageError: kinds ``hub-name``, ``hub-dataset``.
        MissingError: kinds ``hub-unreachable``, ``dataset-missing``.
    """
    name = _NAME.fullmatch(source)
    if name is None:
        raise UsageError(
            "hub-name",
            f"{source} is not of the form hf:OWNER/NAME[/CONFIG][:SPLIT][@REVISION]; a split is "
            "one name",
        )
    commit = _commit_of(source, name["repository"], name["revision"])
    paths = _downloaded(source, name["repository"], name["config"], name["split"], commit)
    return [DataFile.find(path, path.name) for path in paths]


def _commit_of(source: str, repository: str, revision: str | None) -> str:
    # Slow to import, and of no use to anyone whose dataset is a file.
    from huggingface_hub import HfApi, constants  # noqa: PLC0415
    from huggingface_hub.errors import (  # noqa: PLC0415
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        info = HfApi().dataset_info(repository, revision=revision, timeout=_TIMEOUT_S)
    except (RepositoryNotFoundError, RevisionNotFoundError, GatedRepoError) as error:
        raise MissingError(
            "dataset-missing",
            f"the hub has no {source} for you; check its name, and log in with hf auth login "
            "where it is not public",
        ) from error
    except Exception as error:  # the hub's client lets its HTTP library's own pass
        raise MissingError(
            "hub-unreachable",
            f"cannot reach {constants.ENDPOINT} for {source} ({_first_line(error)}); download the "
            "dataset where it can be reached, and give its folder",
        ) from error
    return str(info.sha)


def _downloaded(
    source: str, repository: str, config: str | None, split: str | None, commit: str
) -> list[Path]:
    import datasets  # noqa: PLC0415 - slow, as above

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        table: Any = datasets.load_dataset(
            repository, config, split=split or "train", revision=commit
        )
    # Whatever it cannot make one table of ends here: unknown configs and splits, and files whose
    # fields change their types.
    except (datasets.exceptions.DatasetsError, ValueError, LookupError, OSError) as error:
        raise UsageError(
            "hub-dataset",
            f"datasets cannot load {source} ({_first_line(error.__cause__ or error)}); give what "
            "there is, or download its files and give their folder",
        ) from error
    return [Path(file["filename"]) for file in table.cache_files]


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:300]
