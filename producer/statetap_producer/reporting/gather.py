"""Gathers what a report says: from the run's files, and from Redis where it is given."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version

from statetap_producer.queueing.broker import Broker
from statetap_producer.queueing.run_state import RunNumbers, RunState
from statetap_producer.reporting.distributions import length_bins, mask_shares
from statetap_producer.reporting.dropped_rows import dropped_rows
from statetap_producer.reporting.failures import failures
from statetap_producer.reporting.report_facts import RunReport
from statetap_producer.reporting.row_norms import row_norms
from statetap_producer.reporting.stored_samples import StoredSamples, stored_samples
from statetap_producer.reporting.throughput import servers, time_bins, workers
from statetap_producer.run.known_workers import KnownWorkers
from statetap_producer.run.run_folder import RunFolder
from statetap_producer.terminal.counted import counted


def gather(
    run: RunFolder,
    broker: Broker | None,
    *,
    num_samples: int,
    seed: int,
    on_progress: Callable[[int], None],
) -> RunReport:
    """Looks at a run once; it may be under way, and need not have stored anything.

    Args:
        run: a planned run.
        broker: gives what workers announce of other disks; None looks at the files alone.
        num_samples: samples, at most, of which the states are read.
        seed: chooses them.
        on_progress: called with how many of them were read.

    Raises:
        StatetapError: what ``RunState`` raises.
    """
    record = run.read_record()
    state = RunState(run, broker)
    samples = stored_samples(run.shard_files(), record.inputs.spec)
    planned = state.plan.lengths()
    bins = time_bins(samples)
    norms, unreadable_samples = row_norms(samples.table, num_samples, seed, on_progress)
    numbers = state.numbers()
    tried = failures(state, run.tries)
    faults = [*samples.faults, *unreadable_samples]
    if state.unplanned:
        faults.append(f"{counted(len(state.unplanned), 'sample')} in {run.shards}: not planned")
    if tried.num_unreadable:
        faults.append(f"{counted(tried.num_unreadable, 'line')} in {run.tries} cannot be read")
    return RunReport(
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        statetap_version=version("statetap-producer"),
        record=record,
        numbers=numbers,
        holdings=samples.holdings(),
        lengths=length_bins(planned, samples.num_tokens),
        mask=mask_shares(state.plan.loss_tokens(), planned),
        times=bins,
        servers=servers(samples, bins),
        workers=workers(samples, bins),
        failures=tried,
        norms=norms,
        dropped=dropped_rows(record.left_out, run.left_out_file),
        shards=samples.shard_lines(),
        origin=samples.origin(),
        faults=tuple(_within(run, sentence) for sentence in faults),
        unseen=tuple(_unseen(run, state, numbers, samples, has_redis=broker is not None)),
    )


def _within(run: RunFolder, sentence: str) -> str:
    """The sentence with paths from the run's folder on: a card is for people elsewhere."""
    for folder in (run.path.absolute(), run.path):
        sentence = sentence.replace(f"{folder}/", "")
    return sentence


def _unseen(
    run: RunFolder,
    state: RunState,
    numbers: RunNumbers,
    samples: StoredSamples,
    *,
    has_redis: bool,
) -> Iterator[str]:
    """What there may be of the run that this report does not show."""
    num_elsewhere = numbers.stored - len(state.stored & state.settled.scanner.keys)
    if num_elsewhere:
        yield (
            f"{counted(num_elsewhere, 'sample')} stored on disks that cannot be seen from here: "
            "counted by what their workers announced, and their lengths, times, norms, failed "
            "tries and shards are not in this report"
        )
    for name in numbers.silent_workers:
        yield (
            f"Nothing was heard from worker {name}, which may hold samples; they count as pending"
        )
    if has_redis:
        return
    known = KnownWorkers(run.path / "workers.json").by_place.values()
    for worker in known:
        if worker.holds_what_is_not(lambda key: key in state.stored or key in state.dead):
            yield (
                f"Worker {worker.address} holds samples or dead letters on a disk that cannot be "
                "seen from here; without Redis they count as pending"
            )
    if not len(samples.table) and numbers.pending:
        yield "Redis was not asked: what workers store on other disks is not counted"
