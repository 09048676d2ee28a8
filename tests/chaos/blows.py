"""Carries out a schedule on an arena, and keeps count."""

import contextlib
import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import psutil
from redis.exceptions import RedisError
from statetap_contract import Job, queue_name
from statetap_producer.queueing.envelope import Envelope
from statetap_producer.run.plan import Plan
from statetap_store import RunScanner

from .arena import START_S, Arena
from .leftovers import Census
from .relay import Relay
from .schedule import Event, Kind
from .victims import Victims

#: Seconds between two looks at what is stored, or at whether Redis is back.
_POLL_S: Final = 0.05

#: Freezes are short or, a fifth of them, longer than a connection to Redis is waited for.
_SHORT_S: Final = (0.2, 4.0)
_LONG_S: Final = (16.0, 22.0)

#: A worker that was told to end may be waiting for its server first.
_END_S: Final = 180.0

_MOST_DUPLICATES: Final = 200


class Blows:
    """What is done to an arena. Freezes and commands go on beside what comes after them."""

    def __init__(self, arena: Arena, census: Census) -> None:
        #: What happened, by kind.
        self.done: Counter[Kind] = Counter()
        self.num_duplicates = 0
        self.num_sigterms = 0
        #: Looks at the status that had an answer.
        self.num_looks = 0
        #: Promises that were not kept meanwhile, a sentence each.
        self.faults: list[str] = []
        self._arena = arena
        self._census = census
        self._scanner = RunScanner(arena.run.shards)
        self._thaws: list[threading.Thread] = []
        self._commands = ThreadPoolExecutor(1)
        self._given: list[Future[None]] = []
        record = arena.run.read_record()
        texts = record.inputs.tokenizer_digest, record.inputs.template_digest
        digest = record.inputs.spec.digest
        plan = Plan(arena.run.plan_file, record.counts.num_planned)
        self._jobs = [
            Job(row.key, arena.run.name, digest, row.prompt, *texts) for row in plan.rows()
        ]
        self._queue = queue_name(digest)
        self._envelope = Envelope(digest)
        victims = Victims(arena)
        self._do: dict[Kind, Callable[[random.Random], None]] = {
            Kind.CHILD: lambda draw: _kill(victims.child(draw)),
            Kind.PARENT: lambda draw: _kill(victims.parent(draw)),
            Kind.WORKER: lambda draw: _kill(*victims.family(draw)),
            Kind.SERVER: lambda _: _kill(victims.server()),
            Kind.SERVER_PART: lambda draw: _kill(victims.server_part(draw)),
            Kind.REDIS: lambda _: _kill(victims.redis()),
            Kind.RECONCILE: lambda _: _kill(victims.reconcile()),
            Kind.STORM: self._storm,
            Kind.FREEZE_CHILD: lambda draw: self._stop(victims.child(draw), draw),
            Kind.FREEZE_REDIS: lambda draw: self._stop(victims.redis(), draw),
            Kind.FREEZE_QUEUE: lambda draw: self._freeze(arena.to_redis, draw),
            Kind.FREEZE_SERVER: lambda draw: self._freeze(arena.to_server, draw),
            Kind.CUT: lambda draw: draw.choice((arena.to_redis, arena.to_server)).cut(),
            Kind.DUPLICATES: self._queue_twice,
            Kind.ENQUEUE: lambda _: self._give(self._enqueue),
            Kind.STATUS: lambda _: self._give(self._look),
            Kind.FLUSH: lambda _: self._ask(lambda client: client.flushall()),
        }

    def carry_out(self, schedule: list[Event], log: Path) -> None:
        """All of it, in order, with a line each; returns when nothing is frozen any more."""
        begun_s = time.monotonic()
        with log.open("w", buffering=1) as lines:
            for event in schedule:
                self._wait(event)
                self._census.look()
                self._do[event.kind](random.Random(event.seed))
                self.done[event.kind] += 1
                at_s = time.monotonic() - begun_s
                lines.write(f"{at_s:7.1f} s {self._num_stored():6} stored  {event.kind}\n")
        for thaw in self._thaws:
            thaw.join()
        self._commands.shutdown()
        for given in self._given:
            given.result()

    def _wait(self, event: Event) -> None:
        deadline_s = time.monotonic() + event.patience_s
        enough = self._num_stored() + event.num_samples
        while self._num_stored() < enough and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)

    def _num_stored(self) -> int:
        self._scanner.refresh()
        return len(self._scanner.keys)

    def _storm(self, draw: random.Random) -> None:
        """One to four SIGTERMs to each worker, within two seconds."""
        told = [(keeper, draw.randint(1, 4)) for keeper in self._arena.workers]
        signals = [keeper for keeper, number in told for _ in range(number)]
        draw.shuffle(signals)
        for keeper in signals:
            if (process := keeper.process) is not None:
                keeper.expect_end(_END_S)
                _signal(process, signal.SIGTERM)
                self.num_sigterms += 1
            time.sleep(draw.uniform(0, 2 / len(signals)))

    def _stop(self, process: psutil.Process, draw: random.Random) -> None:
        _signal(process, signal.SIGSTOP)
        self._later(lambda: _signal(process, signal.SIGCONT), draw)

    def _freeze(self, relay: Relay, draw: random.Random) -> None:
        relay.freeze()
        self._later(relay.thaw, draw)

    def _later(self, thaw: Callable[[], None], draw: random.Random) -> None:
        span_s = _LONG_S if draw.random() < 0.2 else _SHORT_S
        timer = threading.Timer(draw.uniform(*span_s), thaw)
        timer.start()
        self._thaws.append(timer)

    def _queue_twice(self, draw: random.Random) -> None:
        jobs = draw.sample(self._jobs, draw.randint(1, min(_MOST_DUPLICATES, len(self._jobs))))
        messages = [self._envelope.wrap(job) for job in jobs]
        self._ask(lambda client: client.lpush(self._queue, *messages))
        self.num_duplicates += len(jobs)

    def _ask(self, question: Callable[[Any], object]) -> None:
        """Asks Redis, again while it is being started or is frozen."""
        deadline_s = time.monotonic() + START_S
        while True:
            try:
                with self._arena.client() as client:
                    question(client)
            except RedisError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(_POLL_S)
            else:
                return

    def _give(self, command: Callable[[], None]) -> None:
        self._given.append(self._commands.submit(command))

    def _enqueue(self) -> None:
        # Without a window: it would wait for workers to make room.
        ended = self._arena.statetap("enqueue", "--window=0")
        # 3: reconcile is at it, or Redis is away.
        if ended.returncode not in (0, 3) or "Traceback" in ended.stderr:
            self.faults.append(f"enqueue ended with {ended.returncode}: {ended.stderr[-500:]}")

    def _look(self) -> None:
        """``planned = stored + dead + pending``, whatever goes on."""
        ended = self._arena.statetap("status", "--json")
        if ended.returncode == 3 and "Traceback" not in ended.stderr:
            return  # Redis went while it was asked
        if ended.returncode != 0:
            self.faults.append(f"status ended with {ended.returncode}: {ended.stderr[-500:]}")
            return
        self.num_looks += 1
        numbers = json.loads(ended.stdout)
        settled = numbers["stored"] + numbers["dead"] + numbers["pending"]
        if numbers["planned"] != len(self._jobs) or settled != numbers["planned"]:
            self.faults.append(f"status does not add up: {ended.stdout}")
        places = [numbers[name] for name in ("queued", "in_flight", "missing")]
        if None not in places and (min(places) < 0 or sum(places) != numbers["pending"]):
            self.faults.append(f"status does not add up: {ended.stdout}")


def _kill(*processes: psutil.Process) -> None:
    for process in processes:
        _signal(process, signal.SIGKILL)


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    """Sends a signal unless the process has ended; a pid that was given anew is not hit."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)
