"""Tokenises rows of a dataset, a batch at a time: the part of planning that all cores share."""

import multiprocessing
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from statetap_contract import ModelFolder, RejectError, sample_key

from statetap_producer.prompts.chat_tokenizer import ChatTokenizer
from statetap_producer.prompts.prompt_rules import PromptRules
from statetap_producer.reading.conversation import Row, parse_row
from statetap_producer.reading.dataset import RawRow
from statetap_producer.reading.row_fault import RowFault
from statetap_producer.run.plan import PlanBatch, PlannedPrompt, plan_batch

#: Most rows, and bytes of rows, in a batch: enough that handing it over costs nothing beside it.
BATCH_ROWS: Final = 512
_BATCH_BYTES: Final = 4 << 20

#: What a row counts that came decoded, whose bytes nobody knows.
_DECODED_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class TokenisedRows:
    """What became of a batch of rows."""

    num_read: int
    #: The prompts, in the order of their rows.
    prompts: PlanBatch
    faults: list[RowFault]


@dataclass(frozen=True, slots=True)
class Tokeniser:
    """Called with a batch of rows; can be sent to another process, which loads its own tokenizer.

    Raises:
        StatetapError: what ``ChatTokenizer`` raises that concerns all rows.
    """

    model: ModelFolder
    rules: PromptRules
    spec_digest: str

    def __call__(self, raw_rows: list[RawRow]) -> TokenisedRows:
        faults: dict[int, RowFault] = {}
        rows: dict[int, Row] = {}
        for number, raw in enumerate(raw_rows):
            try:
                rows[number] = parse_row(raw.raw)
            except RejectError as error:
                faults[number] = RowFault(raw.file, raw.line, error.kind, error.message)
        planned = []
        results = _tokenizer(self.model, self.rules).prompts([row.content for row in rows.values()])
        for (number, row), result in zip(rows.items(), results, strict=True):
            raw = raw_rows[number]
            if isinstance(result, RejectError):
                faults[number] = RowFault(raw.file, raw.line, result.kind, result.message)
                continue
            key = sample_key(self.spec_digest, result.prompt)
            planned.append(
                PlannedPrompt(key, result.prompt, raw.file, raw.line, row.source_id, result.is_cut)
            )
        in_order = [faults[number] for number in sorted(faults)]
        return TokenisedRows(len(raw_rows), plan_batch(planned), in_order)


@lru_cache(maxsize=1)
def _tokenizer(model: ModelFolder, rules: PromptRules) -> ChatTokenizer:
    if multiprocessing.parent_process() is not None:
        # This process is one of as many as there are cores; threads beside them only wait.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return ChatTokenizer(model, rules)


def batches(rows: Iterable[RawRow]) -> Iterator[list[RawRow]]:
    """Rows in batches of bounded size."""
    batch: list[RawRow] = []
    num_bytes = 0
    for row in rows:
        batch.append(row)
        num_bytes += len(row.raw) if isinstance(row.raw, bytes) else _DECODED_BYTES
        if len(batch) == BATCH_ROWS or num_bytes >= _BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch
