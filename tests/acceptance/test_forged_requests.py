"""What somebody who reaches the server can ask of it, and where its dumps go."""

import shutil
import stat
from pathlib import Path
from typing import Any, Final

import pytest
from statetap_contract import FIELD, dump_name
from statetap_local.services import LocalServer
from statetap_worker.asking.server import Server

from .capturing import (
    Capture,
    assert_right,
    capture_all,
    jobs_of,
    post,
    prompts_of,
    request_body,
)
from .reference import Reference

#: As a request id, and as the key of a capture request.
PATHS: Final = (
    "../outside",
    "/tmp/outside",
    "..",
    ".",
    "",
    "a/b",
    "0123456789abcdef0123456789ABCDEF",
    "0123456789abcdef0123456789abcde/",
    "0123456789abcdef0123456789abcdef\n",
    "0123456789abcdef0123456789abcdef.safetensors",
)


def files_in(dumps: Path) -> set[str]:
    """Hidden ones too: room that is reserved has such a name."""
    return {str(path.relative_to(dumps.parent)) for path in dumps.rglob("*")}


@pytest.mark.parametrize("path", PATHS)
def test_a_request_names_no_file(server: LocalServer, dumps: Path, path: str) -> None:
    """A key is 32 lower-case hex digits, or the request is refused and leaves nothing."""
    (job,) = jobs_of(server.url, prompts_of([20], seed="forged"))
    before, beside = files_in(dumps), set(dumps.parent.glob("outside*"))
    for forged in (rid_and_key(request_body(job), path), key_alone(request_body(job), path)):
        answer = post(server.url, "generate", forged)
        assert answer.status_code == 400
    assert files_in(dumps) == before
    assert set(dumps.parent.glob("outside*")) == beside == set()


def rid_and_key(body: dict[str, Any], key: str) -> dict[str, Any]:
    return key_alone(body, key) | {"rid": key}


def key_alone(body: dict[str, Any], key: str) -> dict[str, Any]:
    wanted = body["sampling_params"]["custom_params"][FIELD] | {"key": key}
    return with_wish(body, wanted)


def with_wish(body: dict[str, Any], wanted: object) -> dict[str, Any]:
    """The request with another capture request in it."""
    params = body["sampling_params"] | {"custom_params": {FIELD: wanted}}
    return body | {"sampling_params": params}


@pytest.mark.parametrize(
    "field", [{"path": "/tmp/outside"}, {"dumps": "/tmp"}, {"attempt": "../outside"}]
)
def test_a_request_adds_nothing(server: LocalServer, field: dict[str, str]) -> None:
    """A field that nobody knows, or that the server itself adds, is no part of a request."""
    (job,) = jobs_of(server.url, prompts_of([20], seed="forged"))
    body = request_body(job)
    wanted = body["sampling_params"]["custom_params"][FIELD] | field
    answer = post(server.url, "generate", with_wish(body, wanted))
    assert answer.status_code == 400
    assert not Path("/tmp/outside").exists()


def test_dumps_are_for_nobody_else(server: LocalServer, dumps: Path, capture: Capture) -> None:
    """Neither the folder nor the files in it."""
    ((job, _),) = capture(prompts_of([20], seed="private"))
    for path in (dumps, dumps / dump_name(job.key)):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    assert server.is_running


def test_a_link_in_the_dump_folder_is_not_followed(
    server: LocalServer, dumps: Path, reference: Reference, tmp_path: Path
) -> None:
    """Neither as an answer to its key, where it leads to the key's own dump, nor to write to."""
    prompts = prompts_of([20, 30], seed="linked")
    (first, second) = jobs_of(server.url, prompts)
    capture_all(server.url, dumps, prompts[:1])
    real, nowhere = tmp_path / "a-real-dump", tmp_path / "nowhere"
    shutil.move(dumps / dump_name(first.key), real)
    content = real.read_bytes()
    captured = []
    for job, target in ((first, real), (second, nowhere)):
        (dumps / dump_name(job.key)).symlink_to(target)
        captured.append((job, Server(server.url).capture(job)))
        assert not (dumps / dump_name(job.key)).is_symlink()
    assert_right(dumps, reference, captured)
    assert real.read_bytes() == content
    assert not nowhere.exists()
