"""What somebody who has Redis's password can put into the queue, and what becomes of it.

Garbage of all kinds is in ``test_garbage_messages.py``; here are messages that mean harm.
"""

import base64
import json
import pickle
from pathlib import Path
from typing import Any, Final

import pytest
from statetap_contract import Receipt, dump_name

from .bench import RUN, Bench, job_of
from .test_garbage_messages import (
    await_good_job,
    body,
    good_job,
    message,
    push,
    unreadable,
    with_job,
)

#: Where a path might lead out of the folder of runs, or to what is not a run's.
PATHS: Final = (
    "../outside",
    "../../outside",
    "/tmp/outside",
    "a-run/../../outside",
    "..",
    ".",
    "",
    ".workers",
    "a/b",
    "a\0b",
    "a-run\n",
)


class Planter:
    """Pickled, it makes a file wherever it is read."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, tuple[Path]]:
        return Path.touch, (self._file,)


def pickled(file: Path, content_type: str) -> bytes:
    """A message whose body is a pickle that makes the file."""
    payload = pickle.dumps(([Planter(file)], {}, {}))
    return message(
        body=base64.b64encode(payload).decode(),
        content_type=content_type,
        content_encoding="binary",
        properties__body_encoding="base64",
    )


def files_around(bench: Bench) -> set[Path]:
    """All that lies beside and in the folder of runs."""
    return set(bench.runs.parent.rglob("*"))


@pytest.mark.parametrize("content_type", ["application/x-python-serialize", "pickle"])
def test_a_pickle_is_not_opened(bench: Bench, tmp_path: Path, content_type: str) -> None:
    """It is set aside; opened, as here at last, it would have made its file."""
    file = tmp_path / "made"
    item = pickled(file, content_type)
    push(bench, [item])
    await_good_job(bench)
    assert [line["kind"] for line in unreadable(bench)] == ["message-unreadable"]
    assert not file.exists()
    pickle.loads(base64.b64decode(json.loads(item)["body"]))  # noqa: S301  the test's own
    assert file.exists()


def test_yaml_is_not_opened(bench: Bench, tmp_path: Path) -> None:
    """The other serializer of kombu that can make objects."""
    text = f"[[!!python/object/apply:pathlib.Path.touch [{tmp_path}/made]], {{}}, {{}}]"
    push(bench, [message(body=text, content_type="application/x-yaml")])
    await_good_job(bench)
    assert [line["kind"] for line in unreadable(bench)] == ["message-unreadable"]
    assert not (tmp_path / "made").exists()


def test_paths_lead_nowhere(bench: Bench) -> None:
    """As run, key or spec: nothing is made outside, and nothing under such a name inside."""
    await_good_job(bench)
    before = files_around(bench)
    push(bench, [with_job(**{field: path}) for field in ("run", "key", "spec") for path in PATHS])
    push(bench, [message(headers__id=path) for path in PATHS if path])
    bench.wait_until(lambda: bench.num_messages() == 0)
    assert bench.worker.is_running
    made = {path.relative_to(bench.runs) for path in files_around(bench) - before}
    # The ledgers alone; a good message under an odd id is the job that it holds.
    odd = {path for path in made if path.parts[0] not in {".unreadable", RUN}}
    assert odd == set()
    lines = unreadable(bench)
    assert len(lines) >= 3 * len(PATHS)
    assert {line["kind"] for line in lines} <= {"message-unreadable", "message-foreign"}
    assert not Path("/tmp/outside").exists()


def test_a_forged_job_is_given_up(bench: Bench) -> None:
    """A prompt under another one's key, a field that nobody knows, a mask of another prompt."""
    one, other = job_of(0, 5).to_message(), job_of(1, 9).to_message()
    jobs = [
        one | {"key": other["key"]},
        one | {"token_ids": other["token_ids"]},
        one | {"loss_spans": [1, 2]},
        one | {"unknown": 1},
    ]
    push(bench, [message(body=body(job)) for job in jobs])
    await_good_job(bench)
    assert bench.stored_keys() == {good_job().key}
    letters = bench.dead_letters()
    assert {letter.kind for letter in letters} == {"job-unreadable"}
    assert sorted(letter.key for letter in letters) == sorted(str(job["key"]) for job in jobs)


def test_a_link_in_the_dump_folder_is_not_followed(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt is computed anew; what the link leads to is neither read nor deleted."""
    elsewhere = tmp_path / "elsewhere"
    leave_dump = bench.server._dump

    def leave_link(key: str, ids: list[int], fed: list[int], attempt: int) -> Receipt:
        receipt = leave_dump(key, ids, fed, attempt)
        if key == good_job().key and attempt == 1:
            path = bench.server.dumps / dump_name(key)
            path.rename(elsewhere)
            path.symlink_to(elsewhere)
        return receipt

    monkeypatch.setattr(bench.server, "_dump", leave_link)
    await_good_job(bench)
    assert bench.server.asked[good_job().key] == 2
    tries = [
        json.loads(line)["kind"]
        for file in (bench.runs / RUN / "tries").glob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    assert tries == ["dump-unreadable"]
    assert elsewhere.stat().st_size > 0
