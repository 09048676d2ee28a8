"""TrainerFormat: what must be known of a trainer to write files for it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
from statetap_contract import CaptureSpec
from statetap_store import SampleTable

from statetap_producer.exporting.new_file import NewFile
from statetap_producer.exporting.vocabulary import VocabularyMapping

#: Blocks of rows, [rows, row_width] in the storage dtype, each gone when the next one comes.
Blocks = Iterator[npt.NDArray[np.generic]]

#: Folders of the samples, where a trainer wants those for validation in a folder of their own.
TRAIN: Final = "train"
VAL: Final = "val"


@dataclass(frozen=True, slots=True)
class SampleStream:
    """A sample on its way into a file."""

    key: str
    #: int32 [n], and uint8 [n], 1 where the loss is taken.
    token_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.uint8]
    #: Its states, with the last hidden states that the trainer reads. To be taken once, to the end:
    #: that is where a damaged sample is found out.
    blocks: Blocks
    #: What a row holds, with the norm that the trainer gets.
    spec: CaptureSpec


@dataclass(frozen=True, slots=True)
class ExportContent:
    """What an export is made of."""

    #: The samples in the order of the export: those for training first.
    table: SampleTable
    num_train: int
    #: What is in the files: the samples' spec, with the norm that the trainer gets.
    spec: CaptureSpec
    #: [n], how often each token id is in the loss of the training samples; None where nobody asks.
    token_counts: npt.NDArray[np.int64] | None
    vocabulary: VocabularyMapping | None

    @property
    def num_val(self) -> int:
        return len(self.table) - self.num_train


#: A file that is not a sample's: its name in the export, and what writes it.
Companion = tuple[str, Callable[[NewFile], object]]


class TrainerFormat(Protocol):
    """How one trainer keeps samples. Names are relative to the export's folder."""

    @property
    def name(self) -> str:
        """As people give it to ``--to``."""
        ...

    @property
    def norms(self) -> tuple[str, ...]:
        """Which last hidden states it reads: ``post``, ``pre`` or both."""
        ...

    @property
    def num_layers(self) -> int | None:
        """How many aux layers it reads; None where any number will do."""
        ...

    @property
    def needs_vocabulary(self) -> bool:
        """Whether it does not train without a mapping of the vocabulary."""
        ...

    @property
    def needs_token_counts(self) -> bool:
        """Whether it wants to know how often each token is in the loss."""
        ...

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Endings by which the trainer finds files."""
        ...

    def file_name(self, place: int, num_train: int) -> PurePosixPath:
        """The file of the sample at a place in the export."""
        ...

    def file_bytes(self, spec: CaptureSpec, num_tokens: int) -> int:
        """Bytes that such a file takes, or a few less."""
        ...

    def write(self, sample: SampleStream, file: NewFile) -> None:
        """Writes a sample.

        Raises:
            CheckError: what its blocks raise.
            OSError: the disk fails.
        """
        ...

    def companions(self, content: ExportContent) -> Iterator[Companion]:
        """All further files, in a fixed order; their names do not depend on what is in them."""
        ...

    def facts(self, content: ExportContent) -> dict[str, object]:
        """What the export's record says for this trainer alone."""
        ...


def split_name(place: int, num_train: int) -> tuple[str, int]:
    """Which folder the sample at a place belongs to, and its number there."""
    return (TRAIN, place) if place < num_train else (VAL, place - num_train)
