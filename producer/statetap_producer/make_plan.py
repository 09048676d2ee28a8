"""Makes a run: reads the dataset, tokenises it, writes plan and run record."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal
from statetap_contract import (
    MissingError,
    ModelFolder,
    RejectError,
    UsageError,
    sample_key,
)

from statetap_producer.chat_tokenizer import ChatTokenizer
from statetap_producer.conversation import NOT_JSON_KINDS, parse_conversation
from statetap_producer.counted import counted
from statetap_producer.dataset import Dataset, dataset_digest
from statetap_producer.durable_file import durable_file
from statetap_producer.plan import PlannedPrompt, PlanWriter
from statetap_producer.row_tally import RowTally
from statetap_producer.run_folder import RunFolder
from statetap_producer.run_record import PlanInputs, RunRecord
from statetap_producer.settle_spec import SpecWish, settle_spec


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a person asks of a plan."""

    dataset: Path
    run: RunFolder
    model: Path
    wish: SpecWish
    #: Longest prompt to accept; None for what the model takes.
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """A run's record, and whether it was made just now or had been there."""

    record: RunRecord
    is_new: bool
    #: Bytes free on the disk of the run folder.
    free_bytes: int


#: Called with the bytes of the dataset read so far.
OnProgress = Callable[[int], None]


def make_plan(request: PlanRequest, on_progress: OnProgress) -> PlanOutcome:
    """Writes ``plan.parquet`` and ``run.json``; on any error the folder is as it was.

    A run that was planned from the same inputs is left alone.

    Raises:
        UsageError: kinds ``run-differs``, ``run-folder``, ``max-tokens-impossible``,
            ``dataset-empty``, ``dataset-not-json``, ``no-usable-conversation``.
        MissingError: kinds ``disk-too-small``, ``dataset-missing``.
        StatetapError: what ``ModelFolder.read``, ``settle_spec`` and ``ChatTokenizer`` raise.
    """
    run = request.run
    model = ModelFolder.read(request.model)
    spec, context_length = settle_spec(request.wish, model)
    tokenizer = ChatTokenizer(model, _max_tokens(request, context_length))

    def inputs_with(digest: str) -> PlanInputs:
        return PlanInputs(
            spec=spec,
            dataset=request.dataset.name,
            dataset_digest=digest,
            tokenizer_digest=tokenizer.digest,
            template_digest=tokenizer.template_digest,
            max_tokens=tokenizer.max_tokens,
        )

    if run.is_planned:
        record = run.read_record()
        _refuse_other_inputs(run, record.inputs, inputs_with(dataset_digest(request.dataset)))
        return PlanOutcome(record, is_new=False, free_bytes=shutil.disk_usage(run.path).free)

    dataset = Dataset(request.dataset)
    tally = RowTally()
    with _new_folder(run.path), durable_file(run.plan_file) as temporary:
        with PlanWriter(temporary) as plan:
            for row in _planned_prompts(dataset, tokenizer, spec.digest, tally):
                plan.append(row)
                on_progress(dataset.num_bytes_read)
        _refuse_useless(request.dataset, tally)
        record = RunRecord(run.name, inputs_with(dataset.digest), tally.counts(), tally.left_out())
        free_bytes = shutil.disk_usage(run.path).free
        if record.shard_bytes > free_bytes:
            raise MissingError(
                "disk-too-small",
                f"the run needs {decimal(record.shard_bytes)} and the disk of {run.path} has "
                f"{decimal(free_bytes)} free; choose another disk or a smaller dataset",
            )
    run.write_record(record)
    return PlanOutcome(record, is_new=True, free_bytes=free_bytes)


def _max_tokens(request: PlanRequest, context_length: int) -> int:
    # One position stays free: a server generates at least one token.
    most = context_length - 1
    if request.max_tokens is None:
        return most
    if not 1 <= request.max_tokens <= most:
        raise UsageError(
            "max-tokens-impossible",
            f"--max-tokens {request.max_tokens} is not between 1 and {most}, the most that the "
            "model takes",
        )
    return request.max_tokens


def _refuse_other_inputs(run: RunFolder, planned: PlanInputs, asked: PlanInputs) -> None:
    differences = {
        "capture spec": planned.spec != asked.spec,
        "dataset": planned.dataset_digest != asked.dataset_digest,
        "tokenizer": planned.tokenizer_digest != asked.tokenizer_digest,
        "chat template": planned.template_digest != asked.template_digest,
        "--max-tokens": planned.max_tokens != asked.max_tokens,
    }
    if others := [name for name, differs in differences.items() if differs]:
        raise UsageError(
            "run-differs",
            f"{run.path} holds a plan made with another {' and another '.join(others)}; give "
            "another folder to --run",
        )


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


def _planned_prompts(
    dataset: Dataset, tokenizer: ChatTokenizer, spec_digest: str, tally: RowTally
) -> Iterator[PlannedPrompt]:
    seen: set[str] = set()
    for line, raw in dataset.lines():
        tally.num_read += 1
        try:
            conversation = parse_conversation(raw, line)
            prompt = tokenizer.prompt(conversation)
        except RejectError as error:
            tally.leave_out(line, error)
            continue
        key = sample_key(spec_digest, prompt)
        if key in seen:
            tally.num_duplicates += 1
            continue
        seen.add(key)
        tally.plan(prompt)
        yield PlannedPrompt(key, prompt, line, conversation.source_id)


def _refuse_useless(dataset: Path, tally: RowTally) -> None:
    if tally.lengths:
        return
    if not tally.num_read:
        raise UsageError(
            "dataset-empty", f"{dataset} is empty; give a file with one JSON object a line"
        )
    if tally.num_left_out.keys() <= set(NOT_JSON_KINDS):
        raise UsageError(
            "dataset-not-json",
            f"no line of {dataset} is JSON; give a file with one JSON object a line",
        )
    reason = tally.left_out()[0]
    raise UsageError(
        "no-usable-conversation",
        f"{dataset} holds {counted(tally.num_read, 'row')} and no usable conversation; most often, "
        f"as in line {reason.first_line}: {reason.first_message}",
    )
