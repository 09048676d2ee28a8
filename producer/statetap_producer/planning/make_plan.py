"""Makes a run: reads the dataset, tokenises it on all cores, writes plan and run record."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TextIO

from statetap_contract import CheckError, MissingError, ModelFolder, ServerCapture, UsageError
from statetap_store.process_pool import OrderedMap, process_pool

from statetap_producer.planning.estimate import refuse_small_disk
from statetap_producer.planning.row_tally import RowTally
from statetap_producer.planning.seen_keys import SeenKeys, raw_keys
from statetap_producer.planning.settle_spec import Settlement, SpecWish, settle_spec
from statetap_producer.planning.tokenise import TokenisedRows, Tokeniser, batches
from statetap_producer.prompts.chat_tokenizer import ChatTokenizer
from statetap_producer.prompts.prompt_rules import PromptRules
from statetap_producer.reading.conversation import NOT_JSON_KINDS
from statetap_producer.reading.dataset import Dataset
from statetap_producer.run.durable_file import durable_file
from statetap_producer.run.plan import Plan, PlanBatch, PlanWriter
from statetap_producer.run.run_folder import RunFolder
from statetap_producer.run.run_record import PlanInputs, RunRecord
from statetap_producer.terminal.counted import counted

#: Bytes of a dataset from which on other processes are worth their start, which takes seconds.
_WORTH_PROCESSES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a person asks of a plan."""

    #: A path, or ``hf:`` and a name.
    dataset: str | Path
    run: RunFolder
    model: Path
    wish: SpecWish
    #: Longest prompt to accept; None for what the model takes.
    max_tokens: int | None = None
    #: See ``PromptRules``.
    is_cut: bool = False
    allows_empty_mask: bool = False
    allows_full_mask: bool = False
    #: Whether the first row that would be left out ends it all.
    is_strict: bool = False
    #: Whether shards lie on disks that this machine does not see.
    is_elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """A run's record, and whether it was made just now or had been there."""

    record: RunRecord
    is_new: bool
    #: What the server said of itself, None where none was asked.
    capture: ServerCapture | None


def make_plan(request: PlanRequest, on_progress: Callable[[int, int], None]) -> PlanOutcome:
    """Writes ``plan.parquet``, ``left-out.jsonl`` and ``run.json``.

    On any error the folder is as it was. A run that was planned from the same inputs is left alone,
    unless its plan is gone.

    Args:
        request: what is asked.
        on_progress: called with the bytes of the dataset read so far, and all of them.

    Raises:
        UsageError: kinds ``run-differs``, ``run-folder``, ``max-tokens-impossible``,
            ``dataset-empty``, ``dataset-not-json``, ``no-usable-row``.
        CheckError: kind ``row-refused``: strict, and a row would be left out.
        MissingError: kind ``disk-too-small``.
        StatetapError: what ``Dataset``, ``ModelFolder.read``, ``settle_spec`` and
            ``ChatTokenizer`` raise.
    """
    run = request.run
    model = ModelFolder.read(request.model)
    settled = settle_spec(request.wish, model)
    rules = _rules(request, settled)
    tokenizer = ChatTokenizer(model, rules)
    dataset = Dataset.open(request.dataset)
    inputs = PlanInputs(
        spec=settled.spec,
        dataset=dataset.name,
        dataset_digest=dataset.digest(),
        tokenizer_digest=tokenizer.digest,
        template_digest=tokenizer.template_digest,
        rules=rules,
    )
    if run.is_planned:
        record = run.read_record()
        _refuse_other_inputs(run, record.inputs, inputs)
        if _is_plan_whole(run, record):
            return PlanOutcome(record, is_new=False, capture=settled.capture)
    tokeniser = Tokeniser(model, rules, settled.spec.digest)
    record = _new_plan(request, dataset, inputs, tokeniser, on_progress)
    return PlanOutcome(record, is_new=True, capture=settled.capture)


def _rules(request: PlanRequest, settled: Settlement) -> PromptRules:
    # One position stays free: a server generates at least one token.
    most = settled.context_length - 1
    max_tokens = most if request.max_tokens is None else request.max_tokens
    if not 1 <= max_tokens <= most:
        raise UsageError(
            "max-tokens-impossible",
            f"--max-tokens {max_tokens} is not between 1 and {most}, the most that the model takes",
        )
    return PromptRules(
        max_tokens, request.is_cut, request.allows_empty_mask, request.allows_full_mask
    )


def _refuse_other_inputs(run: RunFolder, planned: PlanInputs, asked: PlanInputs) -> None:
    differences = {
        "capture spec": planned.spec != asked.spec,
        "dataset": planned.dataset_digest != asked.dataset_digest,
        "tokenizer": planned.tokenizer_digest != asked.tokenizer_digest,
        "chat template": planned.template_digest != asked.template_digest,
    }
    differences |= {
        option: getattr(planned.rules, name) != getattr(asked.rules, name)
        for name, option in _OPTIONS.items()
    }
    if others := [name for name, differs in differences.items() if differs]:
        raise UsageError(
            "run-differs",
            f"{run.path} holds a plan made with another {' and another '.join(others)}; give "
            "another folder to --run",
        )


def _is_plan_whole(run: RunFolder, record: RunRecord) -> bool:
    """Whether the plan is there; one that was deleted or cut is made again, the same as it was."""
    try:
        Plan(run.plan_file, record.counts.num_planned)
    except (CheckError, MissingError):
        return False
    return True


#: The option that sets each of the rules.
_OPTIONS: Final = {
    "max_tokens": "--max-tokens",
    "is_cut": "--cut",
    "allows_empty_mask": "--allow-empty-mask",
    "allows_full_mask": "--allow-full-mask",
}


def _new_plan(
    request: PlanRequest,
    dataset: Dataset,
    inputs: PlanInputs,
    tokeniser: Tokeniser,
    on_progress: Callable[[int, int], None],
) -> RunRecord:
    run = request.run
    tally = RowTally()
    with (
        _new_folder(run.path),
        durable_file(run.plan_file) as plan_file,
        durable_file(run.left_out_file) as left_out_file,
    ):
        with (
            PlanWriter(plan_file) as plan,
            left_out_file.open("w", encoding="utf-8") as left_out,
            _ordered_map(dataset) as map_in_order,
        ):
            tokenised = map_in_order(tokeniser, batches(dataset.rows()))
            for batch in _new_prompts(tokenised, tally, left_out, is_strict=request.is_strict):
                plan.append(batch)
                on_progress(dataset.num_bytes_read, dataset.num_bytes)
        _refuse_useless(dataset.name, tally)
        record = RunRecord(run.name, inputs, tally.counts(), tally.left_out())
        if not request.is_elsewhere:
            refuse_small_disk(run, record)
    run.write_record(record)
    return record


@contextmanager
def _new_folder(path: Path) -> Iterator[None]:
    """Makes the folder and its parents, and takes them away again when the body fails."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            "run-folder", f"cannot make the folder {path}: {error.strerror}; give another to --run"
        ) from error
    try:
        yield
    except BaseException:
        for folder in missing:
            folder.rmdir()
        raise


@contextmanager
def _ordered_map(dataset: Dataset) -> Iterator[OrderedMap]:
    """All cores for a large dataset, this process alone for a small one."""
    num_processes = len(os.sched_getaffinity(0))
    if dataset.num_bytes < _WORTH_PROCESSES or num_processes == 1:
        yield map
    else:
        with process_pool(num_processes) as map_in_order:
            yield map_in_order


def _new_prompts(
    tokenised: Iterator[TokenisedRows], tally: RowTally, left_out: TextIO, *, is_strict: bool
) -> Iterator[PlanBatch]:
    """The prompts that did not come before; all rows are counted."""
    seen = SeenKeys()
    for rows in tokenised:
        tally.num_read += rows.num_read
        for fault in rows.faults:
            if is_strict:
                raise CheckError(
                    "row-refused",
                    f"{fault}; mend the row, or plan without --strict to leave it out",
                )
            tally.leave_out(fault)
            left_out.write(json.dumps(asdict(fault), ensure_ascii=False) + "\n")
        is_new = seen.add(raw_keys(rows.prompts.column("key").to_pylist()))
        batch = rows.prompts.filter(is_new)
        tally.num_duplicates += rows.prompts.num_rows - batch.num_rows
        tally.plan(batch)
        yield batch


def _refuse_useless(dataset: str, tally: RowTally) -> None:
    if tally.lengths:
        return
    if not tally.num_read:
        raise UsageError("dataset-empty", f"{dataset} is empty; give a file with a row a line")
    reason = tally.left_out()[0]
    if tally.num_left_out.keys() <= set(NOT_JSON_KINDS):
        raise UsageError(
            "dataset-not-json",
            f"no row of {dataset} is JSON; give JSONL, a JSON array, Parquet or a folder of them",
        )
    raise UsageError(
        "no-usable-row",
        f"{dataset} holds {counted(tally.num_read, 'row')} and none that can be planned; most "
        f"often, as in {reason.first_file}:{reason.first_line}: {reason.first_message}",
    )
