"""ExportPlan: what an export will write, settled before anything is written."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from rich.filesize import decimal
from statetap_contract import CheckError, MissingError, ModelFolder, UsageError
from statetap_store import RunReader, SampleTable
from statetap_store.merge import check_complete

from statetap_producer.exporting.checksum_list import CHECKSUMS_FILE
from statetap_producer.exporting.export_record import RECORD_FILE, UNFINISHED_FILE, export_record
from statetap_producer.exporting.norm_step import NormStep
from statetap_producer.exporting.sample_list import SAMPLES_FILE, in_export_order, listed_samples
from statetap_producer.exporting.split import check_fraction
from statetap_producer.exporting.trainer_format import ExportContent, TrainerFormat
from statetap_producer.exporting.vocabulary import VocabularyMapping, count_tokens
from statetap_producer.run.run_folder import shards_at
from statetap_producer.terminal.counted import counted

#: What a killed export may leave before there is a record of it.
_BEFORE_RECORD: Final = frozenset(
    {CHECKSUMS_FILE, SAMPLES_FILE, f".{SAMPLES_FILE}.new", f".{UNFINISHED_FILE}.new"}
)
_NUMBER: Final = re.compile(r"(\d+)\.\w+")


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What a person asks of an export."""

    #: A shard, a folder of shards or a run folder.
    path: Path
    trainer: TrainerFormat
    out: Path
    #: The target's folder, None where none is named.
    model: Path | None = None
    #: Share of samples for validation, in [0, 1).
    val_fraction: float = 0.0
    #: Tokens of the drafter's vocabulary, None for no mapping.
    draft_vocab_size: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ExportPlan:
    """An export that can be made, or gone on with."""

    out: Path
    trainer: TrainerFormat
    content: ExportContent
    step: NormStep
    #: Of the model, None where none is named.
    vocab_size: int | None
    #: The content of ``export.json``.
    record: dict[str, object]
    #: Bytes that the samples' files take, and bytes free on the disk of ``out``.
    num_bytes: int
    free_bytes: int
    #: Samples in the shards that came after this export was begun.
    num_later: int
    #: Whether it was begun before, and whether it had been finished.
    is_begun: bool
    is_finished: bool

    @property
    def table(self) -> SampleTable:
        return self.content.table

    def sample_name(self, place: int) -> str:
        """The file of the sample at a place, relative to ``out``."""
        return str(self.trainer.file_name(place, self.content.num_train))

    def file_names(self) -> Iterator[str]:
        """All files that have a checksum, in order: the samples', then the others."""
        yield from map(self.sample_name, range(len(self.table)))
        for name, _ in self.trainer.companions(self.content):
            yield name


def plan_export(request: ExportRequest, on_progress: Callable[[int, int], None]) -> ExportPlan:
    """Settles an export; writes nothing.

    Args:
        request: what is asked.
        on_progress: called with the bytes of ids and masks read, and those to read, where tokens
            are counted.

    Raises:
        UsageError: kinds ``val-fraction``, ``split-empty``, ``model-needed``, ``model-differs``,
            ``draft-vocab-size``, ``vocabulary-needed``, ``layers-differ``, ``export-foreign``,
            ``export-differs``.
        CheckError: kind ``no-samples``, ``no-loss``, ``token-outside``, ``export-damaged``,
            and what ``check_complete`` raises.
        MissingError: kind ``disk-too-small``.
        StatetapError: what listing samples, ``NormStep.settle`` and ``ModelFolder.read`` raise.
    """
    check_fraction(request.val_fraction)
    trainer = request.trainer
    if trainer.needs_vocabulary and request.draft_vocab_size is None:
        raise UsageError(
            "vocabulary-needed",
            f"{trainer.name} does not train without a mapping of the vocabulary: give "
            "--draft-vocab-size, the model's own size for a drafter that has all tokens",
        )
    shards = shards_at(request.path)
    stored = SampleTable.scan(*shards) if shards else None
    if not stored:
        raise CheckError("no-samples", f"{request.path} holds no samples to export")
    num_layers = len(stored.spec.layers)
    if trainer.num_layers not in {None, num_layers}:
        raise UsageError(
            "layers-differ",
            f"{trainer.name} reads {trainer.num_layers} aux layers and these samples have "
            f"{num_layers}: export for another trainer, or capture {trainer.num_layers} layers",
        )
    for shard in stored.shards:
        check_complete(shard)
    model = _model_of(request, stored)
    step = NormStep.settle(trainer.name, trainer.norms, stored.spec, model)
    earlier = _earlier_record(request.out)
    listed = stored
    if earlier is not None:
        _refuse_other_spec(request.out, earlier, stored)
        listed = listed_samples(request.out / SAMPLES_FILE, stored)
    table, num_train = in_export_order(listed, request.val_fraction)
    _refuse_empty_split(request, len(table), num_train)
    content = _content(request, table, num_train, model, step, on_progress)
    record = export_record(trainer, content, step, request.val_fraction)
    if earlier is not None and (others := _differences(earlier, record)):
        raise UsageError(
            "export-differs",
            f"{request.out} holds an export that differs in its {', '.join(others)}: give another "
            "folder to --out",
        )
    _refuse_strangers(request.out, trainer, content)
    is_finished = (request.out / RECORD_FILE).exists()
    tokens = table.num_tokens.tolist()
    plan = ExportPlan(
        out=request.out,
        trainer=trainer,
        content=content,
        step=step,
        vocab_size=None if model is None else model.vocab_size,
        record=record,
        num_bytes=sum(trainer.file_bytes(content.spec, num_tokens) for num_tokens in tokens),
        free_bytes=shutil.disk_usage(_existing(request.out)).free,
        num_later=len(stored) - len(table),
        is_begun=earlier is not None,
        is_finished=is_finished,
    )
    _refuse_small_disk(plan)
    return plan


def _model_of(request: ExportRequest, table: SampleTable) -> ModelFolder | None:
    if request.model is None:
        if request.draft_vocab_size is not None:
            raise UsageError(
                "model-needed",
                "--draft-vocab-size takes the size of the target's vocabulary from its folder: "
                "give it with --model",
            )
        return None
    model = ModelFolder.read(request.model)
    if model.revision != table.spec.revision:
        raise UsageError(
            "model-differs",
            f"{request.model} is revision {model.revision}, the states are of {table.spec.model}, "
            f"revision {table.spec.revision}: give the folder that the server loaded",
        )
    return model


def _refuse_empty_split(request: ExportRequest, num_samples: int, num_train: int) -> None:
    if num_train == 0 or (request.val_fraction and num_train == num_samples):
        side = "validation" if num_train else "training"
        raise UsageError(
            "split-empty",
            f"--val-fraction {request.val_fraction:g} leaves none of {num_samples:,} "
            f"samples for {side}: give another fraction",
        )


def _content(
    request: ExportRequest,
    table: SampleTable,
    num_train: int,
    model: ModelFolder | None,
    step: NormStep,
    on_progress: Callable[[int, int], None],
) -> ExportContent:
    size = request.draft_vocab_size
    counts = vocabulary = None
    if request.trainer.needs_token_counts or size is not None:
        vocab_size = None if model is None else model.vocab_size
        with RunReader(table) as reader:
            counts = count_tokens(reader, num_train, vocab_size, on_progress)
        if size is not None:
            vocabulary = VocabularyMapping.choose(counts, size)
    return ExportContent(table, num_train, step.written_spec(table.spec), counts, vocabulary)


def _earlier_record(out: Path) -> dict[str, object] | None:
    """What a folder says of the export in it; None for a folder that is free for one."""
    nearest = next(path for path in (out, *out.absolute().parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise UsageError("export-foreign", f"{nearest} is no folder: give another to --out")
    if not out.exists():
        return None
    for name in (RECORD_FILE, UNFINISHED_FILE):
        file = out / name
        try:
            record = json.loads(file.read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise CheckError(
                "export-damaged", f"{file} cannot be read ({error}): delete {out} and export anew"
            ) from error
        if not isinstance(record, dict):
            raise CheckError(
                "export-damaged", f"{file} is no record of an export: delete {out} and export anew"
            )
        return record
    others = sorted(path.name for path in out.iterdir() if path.name not in _BEFORE_RECORD)
    if others:
        raise UsageError(
            "export-foreign",
            f"{out} holds other things than an export, {others[0]} among them: give a new folder "
            "to --out",
        )
    return None


def _refuse_other_spec(out: Path, earlier: dict[str, object], table: SampleTable) -> None:
    if earlier.get("capture_spec") != table.spec.to_json():
        raise UsageError(
            "export-differs",
            f"{out} holds an export of another capture spec: give another folder to --out",
        )


def _differences(earlier: dict[str, object], record: dict[str, object]) -> list[str]:
    """Fields that differ, in words."""
    # As it comes back from a file.
    now = json.loads(json.dumps(record))
    names = [*now, *(name for name in earlier if name not in now)]
    return [name.replace("_", " ") for name in names if earlier.get(name) != now.get(name)]


def _refuse_strangers(out: Path, trainer: TrainerFormat, content: ExportContent) -> None:
    """Raises UsageError for a file that the trainer would take for one of the samples'."""
    num_samples, num_train = len(content.table), content.num_train
    folders = {trainer.file_name(place, num_train).parts[0] for place in (0, num_samples - 1)}
    for folder in sorted(folders):
        for path in (out / folder).rglob("*"):
            if not path.name.endswith(trainer.suffixes):
                continue
            name = PurePosixPath(path.relative_to(out).as_posix())
            match = _NUMBER.search(path.name)
            number = int(match[1]) if match else num_samples
            places = [place for place in (number, number + num_train) if place < num_samples]
            if all(trainer.file_name(place, num_train) != name for place in places):
                raise UsageError(
                    "export-foreign",
                    f"{path} is no file of this export, and {trainer.name} would read it: move it "
                    "away, or give another folder to --out",
                )


def _refuse_small_disk(plan: ExportPlan) -> None:
    if plan.is_finished:
        return
    there = 0
    if plan.is_begun:
        for place in range(len(plan.table)):
            try:
                there += (plan.out / plan.sample_name(place)).stat().st_size
            except OSError:
                continue
    if plan.num_bytes - there > plan.free_bytes:
        raise MissingError(
            "disk-too-small",
            f"the export of {counted(len(plan.table), 'sample')} needs "
            f"{decimal(plan.num_bytes - there)} and the disk of {plan.out} has "
            f"{decimal(plan.free_bytes)} free: choose another disk for --out",
        )


def _existing(path: Path) -> Path:
    """The path itself, or what of it is there."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.is_dir())
