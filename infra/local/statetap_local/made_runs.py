"""Runs whose plans are written directly, without dataset or tokenizer: tests, benchmarks."""

from array import array
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Final

from statetap_contract import CaptureSpec, Prompt, sample_key
from statetap_producer.prompts.prompt_rules import PromptRules
from statetap_producer.run.plan import PlannedPrompt, PlanWriter, plan_batch
from statetap_producer.run.run_folder import RunFolder
from statetap_producer.run.run_record import PlanCounts, PlanInputs, RunRecord

MADE_SPEC: Final = CaptureSpec("made", "r", (1, 2), "post", 16, "float32")

_DIGESTS: Final = ("ab" * 16, "cd" * 16, "ef" * 16)

#: Prompts held in memory at a time.
_BATCH: Final = 1000


def made_run(folder: Path, *lengths: int, spec: CaptureSpec = MADE_SPEC) -> RunFolder:
    """A run with a prompt of each of these lengths, in this order, all different."""
    return write_run(folder, spec, (keyed(spec, made_prompt(*pair)) for pair in enumerate(lengths)))


def made_prompt(number: int, num_tokens: int) -> Prompt:
    """A prompt that no other number has, with ids below 1,000 for numbers below that."""
    ids = array("i", [number, *((number * 31 + place) % 1000 for place in range(1, num_tokens))])
    return Prompt(ids, ((0, 1),))


def keyed(spec: CaptureSpec, prompt: Prompt) -> tuple[str, Prompt]:
    """A prompt behind its sample key."""
    return sample_key(spec.digest, prompt), prompt


def write_run(folder: Path, spec: CaptureSpec, prompts: Iterable[tuple[str, Prompt]]) -> RunFolder:
    """A run of these prompts under these keys; they are not kept in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    run = RunFolder(folder)
    lengths: list[int] = []
    num_loss_tokens = 0
    ahead = iter(prompts)
    with PlanWriter(run.plan_file) as writer:
        while batch := list(islice(ahead, _BATCH)):
            rows = [
                PlannedPrompt(key, prompt, "made.jsonl", line, None)
                for line, (key, prompt) in enumerate(batch, len(lengths) + 1)
            ]
            writer.append(plan_batch(rows))
            lengths += (prompt.num_tokens for _, prompt in batch)
            num_loss_tokens += sum(sum(prompt.loss_mask()) for _, prompt in batch)
    lengths.sort()
    counts = PlanCounts(
        num_read=len(lengths),
        num_planned=len(lengths),
        num_duplicates=0,
        num_cut=0,
        num_tokens=sum(lengths),
        num_loss_tokens=num_loss_tokens,
        min_tokens=lengths[0],
        median_tokens=lengths[len(lengths) // 2],
        max_tokens=lengths[-1],
        histogram=(),
    )
    inputs = PlanInputs(spec, "made.jsonl", *_DIGESTS, PromptRules(max_tokens=lengths[-1]))
    run.write_record(RunRecord(run.name, inputs, counts, ()))
    return run
