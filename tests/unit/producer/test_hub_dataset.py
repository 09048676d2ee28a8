"""Names on the Hugging Face hub: through ``datasets`` itself, against a hub on loopback."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from statetap_contract import UsageError
from statetap_producer.reading.dataset import Dataset

COMMIT = "5f" * 20
FILES = {
    "train.jsonl": b'{"id": "a", "prompt": "Hi", "response": "Hello"}\n',
    "test.jsonl": b'{"id": "b", "prompt": "Ho", "response": "Hello"}\n',
}

#: Opens each dataset that it is given; prints its digest and rows, or the error's kind and words.
OPENER = """
import json, sys
from statetap_contract import StatetapError
from statetap_producer.reading.dataset import Dataset
for source in sys.argv[1:]:
    try:
        dataset = Dataset.open(source)
        print(json.dumps([dataset.digest(), [row.raw for row in dataset.rows()]]))
    except StatetapError as error:
        print(json.dumps([error.kind, error.message]))
"""


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as one public dataset, ``owner/chats``, needs."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].removeprefix("/api")
        revision, _, file = path.removeprefix("/datasets/owner/chats/resolve/").partition("/")
        if path in ("/datasets/owner/chats", f"/datasets/owner/chats/revision/{COMMIT}"):
            siblings = [{"rfilename": name} for name in FILES]
            self._answer(json.dumps({"id": "owner/chats", "sha": COMMIT, "siblings": siblings}))
        elif path.startswith(f"/datasets/owner/chats/tree/{COMMIT}"):
            self._answer(
                json.dumps(
                    [
                        {"type": "file", "path": name, "size": len(content), "oid": _etag(content)}
                        for name, content in FILES.items()
                    ]
                )
            )
        elif revision == COMMIT and file in FILES:
            self._answer(FILES[file], ETag=f'"{_etag(FILES[file])}"')
        elif revision == COMMIT:
            self._answer("", 404, **{"X-Error-Code": "EntryNotFound"})
        elif path.startswith("/datasets/owner/chats/"):
            self._answer("", 404, **{"X-Error-Code": "RevisionNotFound"})
        else:
            self._answer("", 404, **{"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET  # noqa: N815 - the name is http.server's

    def _answer(self, body: str | bytes, status: int = 200, **headers: str) -> None:
        content = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in {"X-Repo-Commit": COMMIT, **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()  # noqa: S324 - as the hub does


Open = Callable[..., list[list[Any]]]


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    """Its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def open_all(endpoint: str, home: Path, *sources: str) -> list[list[Any]]:
    """In a process of its own, because the hub's client reads the environment once."""
    done = subprocess.run(
        [sys.executable, "-c", OPENER, *sources],
        env=os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"},
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.timeout(120)
def test_a_split_of_the_hub_is_read(hub: str, tmp_path: Path) -> None:
    """The train split is the usual one; a split, and the newest commit, may be given by name."""
    train, test, at_commit = open_all(
        hub,
        tmp_path,
        "hf:owner/chats",
        "hf:owner/chats/default:test",
        f"hf:owner/chats:train@{COMMIT}",
    )
    assert train[1] == [{"id": "a", "prompt": "Hi", "response": "Hello"}]
    assert test[1] == [{"id": "b", "prompt": "Ho", "response": "Hello"}]
    assert at_commit == train
    assert test[0] != train[0]
    # Another machine, with nothing in its cache, finds the same dataset.
    assert open_all(hub, tmp_path / "elsewhere", "hf:owner/chats") == [train]


@pytest.mark.timeout(120)
def test_what_the_hub_does_not_have_is_named(hub: str, tmp_path: Path) -> None:
    """Unknown datasets, revisions, splits and configs are told apart in a sentence each."""
    dataset, revision, split, config = open_all(
        hub,
        tmp_path,
        "hf:owner/absent",
        "hf:owner/chats@absent",
        "hf:owner/chats:absent",
        "hf:owner/chats/absent",
    )
    assert dataset[0] == revision[0] == "dataset-missing"
    assert "hf:owner/absent" in dataset[1]
    assert "hf:owner/chats@absent" in revision[1]
    assert split[0] == config[0] == "hub-dataset"
    assert 'Unknown split "absent"' in split[1]
    assert "'absent' not found" in config[1]


@pytest.mark.timeout(20)
def test_a_hub_that_cannot_be_reached_is_given_up_at_once(tmp_path: Path) -> None:
    """Without a network there is one sentence, and no minute of tries."""
    ((kind, message),) = open_all("http://127.0.0.1:9", tmp_path, "hf:owner/chats")
    assert kind == "hub-unreachable"
    assert message.startswith("cannot reach http://127.0.0.1:9 for hf:owner/chats (")


@pytest.mark.parametrize(
    "source", ["hf:", "hf:chats", "hf:owner/", "hf:owner/chats:train[:10]", "hf:a/b/c/d", "hf:a/b@"]
)
def test_a_name_of_another_form_is_refused(source: str) -> None:
    """The form is named; no hub is asked."""
    with pytest.raises(UsageError, match="is not of the form hf:OWNER/NAME") as caught:
        Dataset.open(source)
    assert caught.value.kind == "hub-name"


def test_who_has_a_file_does_not_wait_for_the_hub() -> None:
    """Reading files imports neither ``datasets``, which takes a second, nor the hub's client."""
    code = (
        "import sys, statetap_producer.reading.dataset\n"
        "print({'datasets', 'huggingface_hub'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "set()"
