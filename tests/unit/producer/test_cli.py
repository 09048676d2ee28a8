"""The command as people meet it: what it prints, where, and how it exits."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis
from redis import Redis
from statetap_contract import queue_name
from statetap_local.services import LocalRedis
from statetap_producer import cli
from statetap_producer.queueing.broker import Broker, redis_error
from statetap_producer.run.run_folder import RunFolder
from statetap_store import ShardWriter

from .conftest import Invoke, ModelMaker, give_up, prompts_of, store

COMMANDS = (
    *("plan", "enqueue", "reconcile", "rerun", "status"),
    *("verify", "inspect", "repair", "merge", "seal"),
    *("export", "crosscheck", "diagnose", "generate", "report"),
)


def test_help_lists_every_command(statetap: Invoke) -> None:
    """Each command has a line, the exit codes are told, and nothing fails."""
    result = statetap("--help")
    assert result.exit_code == 0
    for words in (*COMMANDS, "Exit codes: 0 done"):
        assert words in result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_explains_every_option(statetap: Invoke, command: str) -> None:
    """No option of any command stands without words."""
    result = statetap(command, "--help")
    options = [line for line in result.stdout.splitlines() if line.startswith("│") and "--" in line]
    lines = [line.strip("│* ").split("  ") for line in options]
    assert result.exit_code == 0
    assert lines
    assert all(len([part for part in line if part.strip()]) == 3 for line in lines), lines


def test_plan_shows_the_numbers(
    statetap: Invoke, dataset: Path, model: Path, tmp_path: Path
) -> None:
    """Prompts, duplicates, tokens, room and reasons are all on the screen; again says so."""
    with dataset.open("a") as stream:
        stream.write("broken\n")
    arguments = ("plan", dataset, "--run", tmp_path / "demo", "--model", model)
    result = statetap(*arguments, "--layers", "1,3,5", "--dtype", "float16")
    shown = " ".join(result.stdout.split())
    assert (result.exit_code, result.stderr) == (0, "")
    for words in (
        "run demo",
        "tiny, layers 1,3,5, float16",
        "rows read 4",
        "prompts planned 2",
        "duplicates 1",
        "row-not-json 1, first chats.jsonl:4: the row is not JSON",
        "shards",
        "shared memory up to",
        "time unknown",
    ):
        assert words in shown
    again = statetap(*arguments, "--layers", "5,3,1", "--dtype", "float16")
    assert again.exit_code == 0
    assert again.stdout.startswith("The run holds this very plan already.")


def test_brackets_in_data_are_shown_as_they_are(
    statetap: Invoke, dataset: Path, model: Path, tmp_path: Path
) -> None:
    """Text from a dataset is no markup."""
    odd = tmp_path / "[red]chats.jsonl"
    odd.write_text(dataset.read_text() + '{"messages": [{"role": "[/bold]", "content": ""}]}\n')
    result = statetap("plan", odd, "--run", tmp_path / "demo", "--model", model)
    assert result.exit_code == 0
    assert "role '[/bold]'" in result.stdout
    assert result.stdout.count("[red]chats.jsonl") == 2


def check_error(result: Any, exit_code: int, *words: str) -> None:
    """One sentence on stderr, nothing on stdout, no traceback."""
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert result.stderr.startswith("statetap: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


def test_each_mistake_of_planning_is_a_sentence(
    statetap: Invoke, dataset: Path, model: Path, tmp_path: Path, make_model: ModelMaker
) -> None:
    """Wrong use exits with 2, something missing with 3."""
    run = ("--run", tmp_path / "demo", "--model", model)
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    check_error(statetap("plan", tmp_path / "no.jsonl", *run), 3, "cannot read", "no.jsonl")
    check_error(statetap("plan", empty, *run), 2, "is empty")
    check_error(statetap("plan", model / "chat_template.jinja", *run), 2, "is JSON")
    check_error(
        statetap("plan", model / "config.json", *run), 2, "config.json:1: the row has none of"
    )
    check_error(statetap("plan", dataset, *run, "--layers", "a,b"), 2, "'a,b'", "2,15,27")
    check_error(statetap("plan", dataset, *run, "--layers", "1,99"), 2, "[1, 99]")
    check_error(statetap("plan", dataset, *run, "--dtype", "int8"), 2, "'int8'")
    check_error(statetap("plan", dataset, *run, "--max-tokens", "0"), 2, "--max-tokens 0")
    check_error(statetap("plan", dataset, *run, "--server", "nowhere"), 2, "'nowhere'")
    check_error(statetap("plan", dataset, *run, "--server", "http://127.0.0.1:1"), 3, "127.0.0.1:1")
    check_error(
        statetap("plan", dataset, "--run", tmp_path / "de mo", "--model", model), 2, "'de mo'"
    )
    check_error(
        statetap("plan", dataset, "--run", tmp_path / "demo", "--model", tmp_path / "no"), 3, "no"
    )
    bare = make_model("bare", None)
    check_error(
        statetap("plan", dataset, "--run", tmp_path / "demo", "--model", bare), 2, "chat template"
    )
    assert not (tmp_path / "demo").exists()


def test_a_disk_error_is_a_sentence(
    statetap: Invoke, dataset: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fills up while the plan is written leaves a sentence and no folder."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    result = statetap("plan", dataset, "--run", tmp_path / "demo", "--model", model)
    check_error(result, 3, "No space left on device")
    assert not (tmp_path / "demo").exists()


def test_wrong_options_exit_with_two(statetap: Invoke) -> None:
    """What the command line cannot mean is wrong use."""
    for arguments in (("fly",), ("plan",), ("plan", "a", "--run", "b", "--model", "c", "--fast")):
        assert statetap(*arguments).exit_code == 2


@pytest.mark.parametrize("command", ["enqueue", "status", "verify", "crosscheck"])
def test_a_run_that_is_not_planned_is_named(
    statetap: Invoke, command: str, tmp_path: Path, redis_server: LocalRedis, model: Path
) -> None:
    """Every command that needs a run says how to make one."""
    (tmp_path / "demo").mkdir()
    arguments = {
        "enqueue": ("--run", tmp_path / "demo", "--redis", redis_server.url),
        "status": ("--run", tmp_path / "demo"),
        "verify": (tmp_path / "demo",),
        "crosscheck": (tmp_path / "demo", "--model", model),
    }
    check_error(statetap(command, *arguments[command]), 3, "statetap plan DATASET")


@pytest.mark.parametrize("bound", ["0", "-1", "nan", "inf"])
def test_a_bound_that_is_none_is_refused(
    statetap: Invoke, run: RunFolder, model: Path, bound: str
) -> None:
    """All samples would be beyond it, or none."""
    result = statetap("crosscheck", run.path, "--model", model, "--bound", bound)
    check_error(result, 2, f"--bound {bound}", "above 0")


def test_enqueue_queues_and_says_how_many(
    statetap: Invoke, run: RunFolder, redis_server: LocalRedis
) -> None:
    """Counts go to the screen; what was queued already is told."""
    store(run, prompts_of(run)[0])
    result = statetap("enqueue", "--run", run.path, "--redis", redis_server.url)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "1 prompt queued, 1 already stored, 0 dead\n"
    again = statetap("enqueue", "--run", run.path, "--redis", redis_server.url)
    assert again.stdout == (
        "0 prompts queued, 1 already stored, 0 dead\n1 prompt left out: already queued\n"
    )


def test_enqueue_plans_first(
    statetap: Invoke, dataset: Path, model: Path, tmp_path: Path, redis_server: LocalRedis
) -> None:
    """With a dataset, one command does both."""
    arguments = (dataset, "--run", tmp_path / "demo", "--redis", redis_server.url)
    check_error(statetap("enqueue", *arguments), 2, "--model")
    result = statetap("enqueue", *arguments, "--model", model)
    assert result.exit_code == 0
    assert result.stdout.endswith("2 prompts queued, 0 already stored, 0 dead\n")


def test_reconcile_says_what_it_found(
    statetap: Invoke, run: RunFolder, redis_server: LocalRedis
) -> None:
    """Every count has its line, and what is enqueued is in the queue."""
    first, _ = prompts_of(run)
    store(run, first)
    result = statetap("reconcile", "--run", run.path, "--redis", redis_server.url)
    assert (result.exit_code, result.stderr) == (0, "")
    shown = " ".join(result.stdout.split())
    assert shown == (
        "run demo planned 2 stored 1 dead 0 queued 0 in flight 0 missing 1 enqueued now 1"
    )
    again = statetap("reconcile", "--run", run.path, "--redis", redis_server.url)
    assert "queued 1 in flight 0 missing 0 enqueued now 0" in " ".join(again.stdout.split())


@pytest.mark.parametrize(("is_dead", "code"), [(False, 0), (True, 1)])
def test_reconcile_goes_on_until_nothing_is_pending(
    statetap: Invoke,
    run: RunFolder,
    redis_server: LocalRedis,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_dead: bool,
    code: int,
) -> None:
    """A line a round; a Redis that is gone for one of them does not end it."""
    first, second = prompts_of(run)
    real = Broker.num_waiting
    rounds: list[float] = []

    def gone(broker: Broker, queue: str) -> int:
        if not rounds:
            raise redis_error(broker.address, redis.ConnectionError("refused"))
        return real(broker, queue)

    def settle(seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) == 2:
            store(run, first)
            give_up(run, second.key) if is_dead else store(run, second, worker="w1")

    monkeypatch.setattr(Broker, "num_waiting", gone)
    monkeypatch.setattr("statetap_producer.commands.reconcile.time.sleep", settle)
    result = statetap("reconcile", "--run", run.path, "--redis", redis_server.url, "--every", "30")
    lines = result.stdout.splitlines()
    assert (result.exit_code, result.stderr, len(lines), rounds) == (code, "", 3, [30, 30])
    assert "cannot be used (refused)" in lines[0]
    assert lines[0].endswith("; trying again in 30 s")
    assert lines[1].endswith("0 of 2 stored, 0 dead, 0 queued, 0 in flight, 2 enqueued")
    assert f"{2 - code} of 2 stored, {code} dead" in lines[2]


def test_rerun_gives_dead_letters_another_chance(
    statetap: Invoke, run: RunFolder, redis_server: LocalRedis
) -> None:
    """All, or those chosen; it says how many and for what they had died."""
    first, second = prompts_of(run)
    give_up(run, first.key)
    give_up(run, second.key, "worker-lost")
    arguments = ("rerun", "--run", run.path, "--redis", redis_server.url)
    check_error(statetap(*arguments, "--reason", "luck"), 2, "mismatch, worker-lost")
    check_error(statetap(*arguments, "--sample", "ab" * 16), 2, first.key)
    chosen = statetap(*arguments, "--reason", "worker-lost")
    assert chosen.stdout == "1 dead letter pending again, 1 queued, 1 dead\n  worker-lost 1\n"
    others = statetap(*arguments, "--sample", first.key)
    assert others.stdout == "1 dead letter pending again, 1 queued, 0 dead\n  mismatch 1\n"
    assert statetap(*arguments).stdout == "0 dead letters pending again, 0 queued, 0 dead\n"


def test_no_output_holds_the_password(
    statetap: Invoke, run: RunFolder, redis_server: LocalRedis
) -> None:
    """Right, wrong or unreachable: the password stays in the command line."""
    for url in (
        redis_server.url,
        redis_server.url.replace(":s3cret", ":s3cret2"),
        "redis://:s3cret-word@127.0.0.1:1/0",
        "http://:s3cret-word@127.0.0.1:1/0",
    ):
        for command in ("enqueue", "status"):
            result = statetap(command, "--run", run.path, "--redis", url)
            assert "s3cret" not in result.output


def test_status_is_one_json_document(
    statetap: Invoke, run: RunFolder, redis_server: LocalRedis
) -> None:
    """Scripts get every count, and nothing else on stdout."""
    first, second = prompts_of(run)
    store(run, first)
    statetap("enqueue", "--run", run.path, "--redis", redis_server.url)
    result = statetap("status", "--run", run.path, "--redis", redis_server.url, "--json")
    tokens = first.prompt.num_tokens
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    counts = {
        "run": "demo",
        "planned": 2,
        "stored": 1,
        "dead": 0,
        "pending": 1,
        "queued": 1,
        "in_flight": 0,
        "missing": 0,
        "planned_tokens": tokens + second.prompt.num_tokens,
        "stored_tokens": tokens,
        "stored_bytes": tokens * (4 * 64 * 4 + 5),
        "dead_by_kind": {},
        "dead_by_server": {},
        "silent_workers": [],
        "unreadable_shards": [],
        "announced": [],
        "is_stalled": False,
    }
    assert {name: document[name] for name in counts} == counts
    assert [(writer["name"], writer["num_samples"]) for writer in document["writers"]] == [
        ("w0", 1)
    ]


def test_status_shows_the_same_to_people(statetap: Invoke, run: RunFolder) -> None:
    """The table holds the counts and the kinds of dead letters."""
    first, second = prompts_of(run)
    store(run, first)
    give_up(run, second.key, "too-long-for-server")
    result = statetap("status", "--run", run.path)
    shown = " ".join(result.stdout.split())
    assert (result.exit_code, result.stderr) == (0, "")
    for words in ("planned 2 prompts", "stored 1 sample,", "dead 1 too-long-for-server 1"):
        assert words in shown


def test_a_shard_that_cannot_be_read_is_told(statetap: Invoke, run: RunFolder) -> None:
    """Status counts what it can and names the shard on stderr."""
    run.shards.mkdir()
    (run.shards / "w0-00001.h5").write_bytes(b"not a shard")
    result = statetap("status", "--run", run.path, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["pending"] == 2
    assert "w0-00001.h5" in result.stderr


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_watch_ends_by_how_the_run_ended(
    statetap: Invoke, run: RunFolder, form: tuple[str, ...]
) -> None:
    """All stored is 0; with a dead letter it is 1."""
    first, second = prompts_of(run)
    store(run, first, second)
    assert statetap("status", "--run", run.path, "--watch", *form).exit_code == 0
    for path in run.shard_files():
        path.unlink()
    store(run, first)
    give_up(run, second.key)
    assert statetap("status", "--run", run.path, "--watch", *form).exit_code == 1


def test_watch_tells_a_stalled_run(
    statetap: Invoke, run: RunFolder, redis_server: LocalRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts that nobody will work on end the watch with the command that helps."""
    monkeypatch.setattr("statetap_producer.queueing.watch.STALLED_AFTER_S", 0.0)
    arguments = ("status", "--run", run.path, "--redis", redis_server.url, "--watch")
    result = statetap(*arguments, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["pending"] == 2
    assert result.stderr == (
        "statetap: 2 prompts are neither stored nor queued; run: statetap reconcile "
        f"--run {run.path}\n"
    )


def test_status_goes_on_without_redis(statetap: Invoke, run: RunFolder) -> None:
    """It says so, shows what the files say, and leaves open what it cannot know."""
    store(run, prompts_of(run)[0])
    form = ("status", "--run", run.path, "--redis", "redis://:s3cret-word@127.0.0.1:1/0")
    result = statetap(*form, "--json")
    assert result.exit_code == 0
    assert result.stderr.startswith("statetap: Redis at 127.0.0.1:1/0 cannot be used")
    assert result.stderr.endswith("from the run's files alone\n")
    assert "s3cret" not in result.stderr
    document = json.loads(result.stdout)
    assert [document[name] for name in ("stored", "pending", "queued", "missing")] == [
        *(1, 1, None, None)
    ]
    shown = statetap(*form)
    assert (shown.exit_code, shown.stderr) == (0, result.stderr)
    assert "pending 1 now" in " ".join(shown.stdout.split())


def test_status_takes_no_wrong_password_for_an_outage(
    statetap: Invoke, run: RunFolder, redis_server: LocalRedis
) -> None:
    """Nor another program's data: these are to be corrected."""
    url = f"redis://:wrong@127.0.0.1:{redis_server.port}/0"
    check_error(statetap("status", "--run", run.path, "--redis", url), 3, "refuses the password")
    client: Redis = redis_server.client()
    with client:
        client.set(queue_name(run.read_record().inputs.spec.digest), "x")
    result = statetap("status", "--run", run.path, "--redis", redis_server.url)
    check_error(result, 3, "a database of its own")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_watch_that_is_stopped_ends_with_what_it_saw_last(
    run: RunFolder, number: signal.Signals
) -> None:
    """The counts are on stdout, and the exit code is the signal's."""
    store(run, prompts_of(run)[0])
    command = [str(Path(sys.executable).parent / "statetap"), "status", "--json", "--watch"]
    environment = {name: os.environ[name] for name in os.environ if name != "STATETAP_REDIS"}
    with subprocess.Popen(
        [*command, "--run", str(run.path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment | {"FORCE_COLOR": "1"},
    ) as watcher:
        assert watcher.stderr is not None
        # What is drawn live.
        while "planned" not in watcher.stderr.readline():
            assert watcher.poll() is None
        watcher.send_signal(number)
        stdout, stderr = watcher.communicate(timeout=30)
    assert watcher.returncode == 128 + number
    assert "Traceback" not in stderr
    document = json.loads(stdout)
    assert (document["stored"], document["pending"]) == (1, 1)


def test_only_planning_waits_for_transformers(run: RunFolder, redis_server: LocalRedis) -> None:
    """Seconds of imports, which no command needs that works on a plan."""
    program = (
        "import sys\n"
        "from statetap_producer.cli import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "assert 'transformers' not in sys.modules\n"
    )
    for command in ("enqueue", "reconcile", "rerun", "status"):
        arguments = (command, "--run", str(run.path), "--redis", redis_server.url)
        subprocess.run(
            [sys.executable, "-c", program, *arguments],
            check=True,
            capture_output=True,
            timeout=60,
        )


def test_sealing_cuts_shards_to_their_content(statetap: Invoke, run: RunFolder) -> None:
    """A sparse file of a shard's capacity becomes one of its content, and stays intact."""
    store(run, *prompts_of(run))
    (shard,) = run.shard_files()
    before = shard.stat().st_size
    result = statetap("seal", run.path)
    assert result.exit_code == 0
    assert f"{shard.name} is sealed" in result.stdout
    assert shard.stat().st_size < before
    assert statetap("verify", run.path).exit_code == 0
    assert statetap("seal", shard).exit_code == 0


def test_a_shard_in_use_is_not_sealed(statetap: Invoke, run: RunFolder) -> None:
    """Its worker would lose it; the sentence names it."""
    first, second = prompts_of(run)
    store(run, first)
    (shard,) = run.shard_files()
    with ShardWriter.open(shard):
        result = statetap("seal", run.path)
    assert result.exit_code == 3
    assert str(shard) in result.stderr
    store(run, second)
    assert len(run.shard_files()) == 1


def test_sealing_goes_on_after_a_bad_shard(statetap: Invoke, run: RunFolder) -> None:
    """Each shard that cannot be sealed is told; the others are sealed, and the command fails."""
    first, second = prompts_of(run)
    store(run, first, worker="w1")
    store(run, second, worker="w2")
    (shard, other) = run.shard_files()
    (run.shards / "a.h5").write_text("no shard")
    with ShardWriter.open(shard):
        result = statetap("seal", run.path, other)
    assert result.exit_code == 3
    assert result.stdout.count("is sealed") == 1
    assert f"{other.name} is sealed" in result.stdout
    sentences = result.stderr.splitlines()
    assert [sentence.startswith("statetap: ") for sentence in sentences] == [True, True]
    assert "a.h5 is not an HDF5 file" in sentences[0]
    assert str(shard) in sentences[1]


def test_odd_names_are_sealed_as_they_are(statetap: Invoke, run: RunFolder) -> None:
    """A name is no markup."""
    store(run, *prompts_of(run))
    odd = run.shard_files()[0].rename(run.shards / "od[bold].h5")
    assert statetap("seal", odd).stdout.startswith("od[bold].h5 is sealed, ")


@pytest.mark.parametrize("command", [("inspect",), ("seal",), ("merge", "--out", "all.h5")])
def test_a_run_without_shards(statetap: Invoke, run: RunFolder, command: tuple[str, ...]) -> None:
    """There is nothing to show, to seal or to merge before a worker has stored something."""
    result = statetap(*command, run.path)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "start a worker" in result.stderr


def test_verify_tells_intact_from_faulty(statetap: Invoke, run: RunFolder) -> None:
    """The verdict comes last and decides the exit code, for people and for scripts."""
    first, second = prompts_of(run)
    store(run, first)
    faulty = statetap("verify", run.path)
    assert faulty.exit_code == 1
    assert "sample-missing: 1 planned prompt is neither stored nor dead" in faulty.stdout
    assert faulty.stdout.splitlines()[-1] == "1 fault, 1 sample in 1 shard"
    document = json.loads(statetap("verify", run.path, "--json").stdout)
    assert document["is_good"] is False
    assert [fault["kind"] for fault in document["run_faults"]] == ["sample-missing"]
    assert [shard["num_samples"] for shard in document["shards"]] == [1]

    store(run, second, worker="w1")
    good = statetap("verify", run.path)
    assert good.exit_code == 0
    assert good.stdout.splitlines()[-1] == "2 samples in 2 shards, all intact"
    assert json.loads(statetap("verify", run.path, "--json", "--quick").stdout)["is_good"] is True


def test_long_lists_of_faults_are_cut_for_people_only(statetap: Invoke, tmp_path: Path) -> None:
    """Twenty faults are shown, all are in the JSON."""
    shards = [tmp_path / f"w{number}-00001.h5" for number in range(25)]
    for shard in shards:
        shard.write_bytes(b"not a shard")
    result = statetap("verify", *shards)
    document = json.loads(statetap("verify", *shards, "--json").stdout)
    assert result.exit_code == 1
    assert "and 5 more; --json lists all" in result.stdout
    assert len([fault for shard in document["shards"] for fault in shard["faults"]]) == 25


def test_crosscheck_without_torch_says_what_to_install(
    statetap: Invoke, run: RunFolder, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its extra brings torch, whose absence is a sentence."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    check_error(statetap("crosscheck", run.path, "--model", model), 3, "[crosscheck]")


def test_an_interrupt_exits_quietly(
    statetap: Invoke, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C is 130, as shells have it, without a word."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("statetap_producer.queueing.run_state.RunState.numbers", interrupt)
    result = statetap("status", "--run", run.path)
    assert (result.exit_code, result.output) == (130, "")


def test_main_is_the_installed_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The entry point runs the application."""
    monkeypatch.setattr("sys.argv", ["statetap", "--help"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 0
    assert "Usage: statetap" in capsys.readouterr().out


def test_the_queue_is_that_of_the_spec(
    statetap: Invoke, run: RunFolder, redis_server: LocalRedis
) -> None:
    """Workers of other specs never see the run's messages."""
    statetap("enqueue", "--run", run.path, "--redis", redis_server.url)
    client: Redis = redis_server.client()
    with client:
        assert client.llen(queue_name(run.read_record().inputs.spec.digest)) == 2
