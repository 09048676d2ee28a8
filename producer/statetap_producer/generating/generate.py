"""Answers by the target model: fills in the missing turns of a dataset's conversations, or all."""

import asyncio
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from statetap_contract import CheckError, MissingError, RejectError, UsageError

from statetap_producer.generating.answer_file import (
    AnswerCounts,
    AnswerInputs,
    MadeRecord,
    PartialFile,
)
from statetap_producer.generating.chat_client import (
    REFUSALS,
    ChatClient,
    Sampling,
    ServerFaultError,
)
from statetap_producer.generating.json_form import json_form
from statetap_producer.generating.missing_answers import conversation_in, turns_to_ask
from statetap_producer.reading.conversation import Conversation, parse_row
from statetap_producer.reading.dataset import Dataset, RawRow
from statetap_producer.reading.row_fault import RowFault

#: So many rows that the server fails on, one after another and none answered in between, are no
#: fault of the rows.
_MOST_FAULTS: Final = 3

#: Rows that are named; the others are counted.
_NUM_NAMED: Final = 20


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What is to be answered, by whom, and where to."""

    dataset: str | Path
    out: Path
    server: str
    #: Name of the model at the server; None for the only one.
    model: str | None
    sampling: Sampling
    #: Whether turns of the assistant that are there are asked for anew.
    is_replacing: bool
    num_in_flight: int
    #: Whether the first row that would be left out ends it.
    is_strict: bool


@dataclass(slots=True)
class GenerateProgress:
    """How far it is."""

    #: Bytes of the dataset that were read, and all of them.
    num_bytes_read: int = 0
    num_bytes: int = 0
    #: Rows in the file, and those of them that an earlier call has left there.
    num_rows: int = 0
    num_rows_before: int = 0
    #: Answers of this call, their tokens, and those that ended at ``max_new_tokens``.
    num_answers: int = 0
    num_tokens: int = 0
    num_left_out: Counter[str] = field(default_factory=Counter)
    #: The first rows that were left out.
    faults: list[RowFault] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GenerateOutcome:
    """What the file holds now."""

    model: str
    counts: AnswerCounts
    #: False where the file was there already.
    is_new: bool
    progress: GenerateProgress


def generate(
    request: GenerateRequest, on_progress: Callable[[GenerateProgress], None]
) -> GenerateOutcome:
    """Answers what is not answered yet, and writes the file when that is all.

    Whatever ends it early, answered rows are kept in ``FILE.partial`` for the next call. They are
    kept beside the finished file too where the server did not answer rows, for which the next
    call asks again.

    Args:
        request: what is asked for.
        on_progress: called after each row, with the same object every time.

    Raises:
        UsageError: kind ``temperature``, it is no number; those of ``ChatClient.open``,
            ``PartialFile.open`` and ``MadeRecord.find``.
        MissingError: kind ``folder-missing``, no folder for the file; those of
            ``ChatClient.answer``; or ``server-fails``, it answers nothing but errors.
        CheckError: kind ``row-refused``: strict, and a row would be left out;
            ``nothing-answered``: all of them would be.
        StatetapError: what ``Dataset`` raises.
    """
    if not request.out.absolute().parent.is_dir():
        raise MissingError("folder-missing", f"{request.out.parent} is not a folder; make it first")
    temperature = request.sampling.temperature
    if temperature is not None and not math.isfinite(temperature):
        raise UsageError("temperature", f"{temperature} is no temperature; give one from 0 to 2")
    outcome = asyncio.run(_outcome_or_exit(_Generation(request, on_progress)))
    if isinstance(outcome, SystemExit):
        raise outcome
    return outcome


async def _outcome_or_exit(generation: "_Generation") -> GenerateOutcome | SystemExit:
    """What ``run`` returns; an exit, as by a signal, as a value.

    Raised in one task it ends the loop, and asyncio would complain that this one has it too.
    """
    try:
        return await generation.run()
    except SystemExit as stop:
        return stop


class _Generation:
    """One call of ``generate``."""

    def __init__(
        self, request: GenerateRequest, on_progress: Callable[[GenerateProgress], None]
    ) -> None:
        self._request = request
        self._on_progress = on_progress
        self._dataset = Dataset.open(request.dataset)
        self._progress = GenerateProgress(num_bytes=self._dataset.num_bytes)
        #: Digests of all rows that can be answered, in the order of the dataset.
        self._digests: list[bytes] = []
        self._num_faults_in_a_row = 0

    async def run(self) -> GenerateOutcome:
        request, sampling = self._request, self._request.sampling
        async with await ChatClient.open(
            request.server, request.model, sampling, request.num_in_flight
        ) as client:
            inputs = AnswerInputs(
                client.model, sampling.max_new_tokens, sampling.temperature, request.is_replacing
            )
            made = MadeRecord(request.out)
            dataset_digest = self._dataset.digest()
            partial_path = request.out.with_name(f"{request.out.name}.partial")
            counts = made.find(dataset_digest, inputs)
            if counts is not None and not (counts.num_refused and partial_path.exists()):
                return GenerateOutcome(client.model, counts, False, self._progress)
            with PartialFile.open(partial_path, inputs) as partial:
                await self._answer_all(client, partial)
                self._check_answered()
                num_left_out = self._progress.num_left_out
                counts = AnswerCounts(
                    num_rows=self._progress.num_rows,
                    num_left_out=num_left_out.total(),
                    num_cut=partial.num_cut(self._digests),
                    num_refused=sum(num_left_out[kind] for kind in REFUSALS),
                )
                made.write(dataset_digest, inputs, counts)
                partial.publish(request.out, self._digests, is_final=not counts.num_refused)
        return GenerateOutcome(client.model, counts, True, self._progress)

    def _check_answered(self) -> None:
        """Raises CheckError, kind ``nothing-answered``, where every row would be left out."""
        progress = self._progress
        if not progress.num_rows and (num_left_out := progress.num_left_out.total()):
            raise CheckError(
                "nothing-answered",
                f"no row could be answered, {num_left_out:,} left out, the first because: "
                f"{progress.faults[0]}; mend that, then run the command again",
            )

    async def _answer_all(self, client: ChatClient, partial: PartialFile) -> None:
        rows = self._dataset.rows()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._request.num_in_flight):
                    group.create_task(self._answer_some(rows, client, partial))
        except ExceptionGroup as failed:
            # The first one ended the others.
            raise failed.exceptions[0] from None

    async def _answer_some(
        self, rows: Iterator[RawRow], client: ChatClient, partial: PartialFile
    ) -> None:
        """Takes rows as long as there are any; many of these run at a time."""
        for row in rows:
            self._progress.num_bytes_read = self._dataset.num_bytes_read
            try:
                await self._answer_row(row, client, partial)
            except RejectError as error:
                self._leave_out(row, error)
            self._on_progress(self._progress)
            # Rows that need no answer must not keep others from getting theirs.
            await asyncio.sleep(0)

    async def _answer_row(self, raw: RawRow, client: ChatClient, partial: PartialFile) -> None:
        progress = self._progress
        row = parse_row(raw.raw)
        conversation = conversation_in(row.content)
        asked = turns_to_ask(conversation.messages, is_replacing=self._request.is_replacing)
        answered: dict[str, Any] = {} if row.source_id is None else {"id": row.source_id}
        answered |= {"messages": conversation.messages, "source": f"{raw.file}:{raw.line}"}
        if conversation.tools is not None:
            answered["tools"] = conversation.tools
        digest = hashlib.blake2b(json_form(answered), digest_size=16).digest()
        self._digests.append(digest)
        if digest in partial:
            progress.num_rows_before += 1
        else:
            messages, is_cut = await self._ask(client, conversation, asked)
            text = json_form(answered | {"messages": messages})
            partial.append(digest, text, is_cut=is_cut)
        progress.num_rows += 1

    async def _ask(
        self, client: ChatClient, conversation: Conversation, asked: list[int]
    ) -> tuple[list[dict[str, Any]], bool]:
        """The turns with those that were asked for, and whether one of these was cut."""
        messages = list(conversation.messages)
        is_cut = False
        for number in asked:
            try:
                answer = await client.answer(messages[:number], conversation.tools)
            except ServerFaultError as error:
                self._count_fault(error)
                raise
            self._num_faults_in_a_row = 0
            messages[number : number + 1] = [answer.message]
            is_cut |= answer.is_cut
            self._progress.num_answers += 1
            self._progress.num_tokens += answer.num_tokens
        return messages, is_cut

    def _count_fault(self, error: ServerFaultError) -> None:
        """Raises MissingError, kind ``server-fails``, when it is not the row that is to blame."""
        self._num_faults_in_a_row += 1
        if self._num_faults_in_a_row >= _MOST_FAULTS or not self._progress.num_rows:
            raise MissingError(
                "server-fails",
                f"the server at {self._request.server} answers nothing but errors "
                f"({error.message}); see its log, then run the command again",
            ) from error

    def _leave_out(self, row: RawRow, error: RejectError) -> None:
        fault = RowFault(row.file, row.line, error.kind, error.message)
        if self._request.is_strict:
            raise CheckError(
                "row-refused",
                f"{fault}; mend the row, or generate without --strict to leave it out",
            ) from error
        self._progress.num_left_out[fault.kind] += 1
        if len(self._progress.faults) < _NUM_NAMED:
            self._progress.faults.append(fault)
