"""Admission: what is refused, answered at once, or passed on."""

import asyncio
import errno
import os
import sys
import threading
import time
from array import array
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import pytest
from statetap_contract import (
    FIELD,
    CaptureRequest,
    CaptureSpec,
    Prompt,
    Receipt,
    dump_name,
    layout_of,
    sample_key,
)
from statetap_patch.dump_file import DumpFile
from statetap_patch.settings import PatchSettings
from statetap_patch.space import reserve, take_over
from statetap_patch.tokenizer_side import _FOREIGN_FIELDS, TokenizerSide

SPEC = CaptureSpec("m", "r", (1, 3), "post", 4, "bfloat16")
IDS = [5, 6, 7]
KEY = sample_key(SPEC.digest, Prompt(array("i", IDS), ()))
LONG = CaptureRequest(KEY, 50, SPEC.digest).to_json()
MANAGER = SimpleNamespace(
    model_config=SimpleNamespace(vocab_size=100), rid_to_state={}, context_len=50
)


def request(**changes: Any) -> SimpleNamespace:
    """What SGLang makes of a well-formed capture request, with changes."""
    wanted: Any = changes.pop("wanted", CaptureRequest(KEY, 3, SPEC.digest).to_json())
    fields: dict[str, Any] = {
        "rid": KEY,
        "input_ids": list(IDS),
        "sampling_params": {"max_new_tokens": 0, "custom_params": {FIELD: wanted}},
        **dict.fromkeys(_FOREIGN_FIELDS),
        "stream": False,
    }
    fields["sampling_params"] |= changes.pop("params", {})
    return SimpleNamespace(**(fields | changes))


@dataclass
class Admission:
    """A tokenizer side, and an SGLang behind it that answers each request with a receipt."""

    folder: Path
    answer: dict[str, Any] = field(
        default_factory=lambda: {"meta_info": {"finish_reason": {"type": "length"}, FIELD: [{}]}}
    )
    #: What SGLang does with the request before it answers.
    act: Callable[[SimpleNamespace], object] = vars
    #: What SGLang was asked, and the files in the folder at that moment.
    asked: list[Any] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    async def sglang(self, _manager: Any, obj: Any, _request: Any) -> AsyncIterator[dict[str, Any]]:
        self.asked.append(obj.sampling_params["custom_params"].get(FIELD))
        self.files = [f"{file.name} {file.stat().st_size}" for file in self.folder.iterdir()]
        self.act(obj)
        yield self.answer

    def admit(self, obj: SimpleNamespace, manager: SimpleNamespace = MANAGER) -> list[Any]:
        side = TokenizerSide(PatchSettings(self.folder, SPEC, (0, 2), keep_s=60))

        async def collect() -> list[Any]:
            hook = side.around_generate_request
            return [answer async for answer in hook(self.sglang, manager, obj)]

        return asyncio.run(collect())


@pytest.fixture
def admission(tmp_path: Path) -> Admission:
    return Admission(tmp_path)


@pytest.fixture(autouse=True)
def starlette(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there only beside SGLang."""
    starlette_stand_in(monkeypatch)


def starlette_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("starlette.exceptions")
    module.HTTPException = HTTPError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "starlette", ModuleType("starlette"))
    monkeypatch.setitem(sys.modules, module.__name__, module)


def wait_until_empty(folder: Path) -> None:
    """Space is given back by a thread."""
    for _ in range(500):
        if not list(folder.iterdir()):
            return
        time.sleep(0.01)
    pytest.fail(f"left behind: {list(folder.iterdir())}")


class HTTPError(Exception):
    """Stands for Starlette's HTTPException."""

    def __init__(self, status_code: int, detail: str, headers: dict[str, str] | None) -> None:
        super().__init__(detail)
        self.status_code, self.headers = status_code, headers


def test_a_good_request_goes_on_with_an_attempt_id(admission: Admission) -> None:
    """The id is made once, here, so that all ranks see the same; the dump's space is reserved."""
    assert admission.admit(request()) == [admission.answer]
    (asked,) = admission.asked
    assert asked["key"] == KEY
    assert len(asked["attempt"]) == 32
    # Header, 3 rows of 12 bfloat16, 3 ids of 4 bytes.
    assert admission.files == [f".{asked['attempt']}.reserved {4096 + 3 * 24 + 3 * 4}"]
    wait_until_empty(admission.folder)  # nobody took it over


def test_a_writers_file_is_left_alone(admission: Admission) -> None:
    """Once a writer has taken the space over, the end of the request does not touch it."""

    def take(obj: SimpleNamespace) -> None:
        take_over(admission.folder, obj.sampling_params["custom_params"][FIELD]["attempt"])

    admission.act = take
    admission.admit(request())
    assert [file.suffix for file in admission.folder.iterdir()] == [".unfinished"]


def test_sglangs_own_refusal_gives_the_space_back(admission: Admission) -> None:
    """A request that SGLang refuses never reaches a writer."""

    def refuse(_obj: SimpleNamespace) -> NoReturn:
        raise ValueError("not today")

    admission.act = refuse
    with pytest.raises(ValueError, match="not today"):
        admission.admit(request())
    wait_until_empty(admission.folder)


@pytest.mark.parametrize(
    ("code", "status", "headers"),
    [
        (errno.ENOSPC, 503, {"Retry-After": "2"}),
        (errno.EDQUOT, 503, {"Retry-After": "2"}),
        (errno.EIO, 500, None),
    ],
)
def test_no_room_is_said_before_anything_is_computed(
    admission: Admission,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    status: int,
    headers: dict[str, str] | None,
) -> None:
    """503 with Retry-After where waiting helps; nothing is left behind."""

    def fail(*_: Any) -> NoReturn:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(HTTPError) as caught:
        admission.admit(request())
    assert (caught.value.status_code, caught.value.headers) == (status, headers)
    assert admission.asked == []
    assert list(admission.folder.iterdir()) == []


def test_a_client_that_vanishes_while_space_is_reserved_leaves_none(
    admission: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that reserves cannot be stopped; what it made is given back."""
    is_reserving, may_go_on, is_done = (threading.Event() for _ in range(3))

    def slow(*arguments: Any) -> None:
        is_reserving.set()
        may_go_on.wait(10)
        reserve(*arguments)
        is_done.set()

    monkeypatch.setattr("statetap_patch.tokenizer_side.reserve", slow)
    side = TokenizerSide(PatchSettings(admission.folder, SPEC, (0, 2), keep_s=60))

    async def vanish() -> None:
        hook = side.around_generate_request(admission.sglang, MANAGER, request())
        task = asyncio.ensure_future(anext(hook))
        await asyncio.get_running_loop().run_in_executor(None, is_reserving.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_go_on.set()
        await asyncio.get_running_loop().run_in_executor(None, is_done.wait, 10)
        await asyncio.sleep(0.05)  # the loop must still be there for the thread's callback

    asyncio.run(vanish())
    assert admission.asked == []
    wait_until_empty(admission.folder)


def test_an_answer_without_a_receipt_is_an_error(admission: Admission) -> None:
    """A capture that got lost inside the patch must not look like a success."""
    # Empty: what SGLang gives a request when another one of the same message has a receipt.
    lost_receipts: tuple[dict[str, Any], ...] = ({}, {FIELD: []})
    for lost in lost_receipts:
        admission.answer = {"meta_info": {"finish_reason": {"type": "length"}} | lost}
        with pytest.raises(HTTPError, match="without being captured") as caught:
            admission.admit(request())
        assert caught.value.status_code == 500


def test_an_abort_is_passed_on(admission: Admission) -> None:
    """It carries no receipt, and says so itself."""
    admission.answer = {"meta_info": {"finish_reason": {"type": "abort", "message": "gone"}}}
    assert admission.admit(request()) == [admission.answer]


def test_ordinary_traffic_passes_untouched(admission: Admission) -> None:
    """Capture is opt-in."""
    obj = request()
    obj.sampling_params["custom_params"] = {"other": 1}
    admission.answer = {"meta_info": {}}
    assert admission.admit(obj) == [admission.answer]
    assert (admission.asked, admission.files) == ([None], [])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"input_ids": [5, 6, 100]}, "token id 100 is not in the vocabulary of 100"),
        ({"input_ids": [5, -6, 7]}, "token id -6"),
        ({"input_ids": []}, "list of integers"),
        ({"input_ids": None}, "list of integers"),
        ({"input_ids": [[5, 6, 7]]}, "list of integers"),
        ({"input_ids": [5, True, 7]}, "list of integers"),
        ({"input_ids": [5, 6]}, "2 tokens, the client counted 3"),
        ({"rid": "other"}, "request id 'other'"),
        ({"stream": True}, "a stream cannot"),
        ({"params": {"n": 2}}, "n other than 1 cannot"),
        ({"params": {"n": None}}, "n other than 1 cannot"),
        ({"params": {"stop_token_ids": [5, 100]}}, "token id 100 is not in the vocabulary of 100"),
        ({"session_params": {"id": "s"}}, "a session cannot"),
        ({"params": {"beam_width": 4}}, "beam search cannot"),
        ({"input_embeds": [[0.0]]}, "input embeddings cannot"),
        ({"image_data": ["x.png"]}, "images cannot"),
        # Two that were seen to end a server.
        ({"token_indices_to_pool": []}, "setwise scoring cannot"),
        ({"positional_embed_overrides": 0}, "overridden embeddings cannot"),
        ({"text": ""}, "a text beside its ids cannot"),
        ({"session_id": "s", "session_params": {"id": "s"}}, "a request with a session cannot"),
        ({"input_ids": [5] * 50, "wanted": LONG}, "has 50 tokens, the server takes fewer than 50"),
        ({"lora_path": "other", "stream": True}, "a stream, a LoRA adapter cannot"),
        ({"wanted": 7}, "not an object"),
        ({"wanted": None}, "not an object"),
        ({"wanted": {"key": KEY}}, "no field 'num_tokens'"),
        ({"wanted": {"key": "../x", "num_tokens": 3, "spec_digest": ""}}, "32 lower-case hex"),
        ({"wanted": {"key": KEY, "num_tokens": "3", "spec_digest": ""}}, "not int"),
        ({"wanted": {"key": KEY, "num_tokens": 3, "spec_digest": "0" * 32}}, "captures spec"),
        ({"wanted": {"key": KEY, "num_tokens": 3, "spec_digest": "", "x": 1}}, "unknown fields"),
        ({"sampling_params": [{"custom_params": {FIELD: {}}}]}, "not a list"),
    ],
)
def test_bad_requests_are_refused_and_reach_nobody(
    admission: Admission, changes: dict[str, Any], reason: str
) -> None:
    """ValueError is what SGLang answers with a 400."""
    obj = request(**{k: v for k, v in changes.items() if k != "sampling_params"})
    if "sampling_params" in changes:
        obj.sampling_params = changes["sampling_params"]
    with pytest.raises(ValueError, match=reason):
        admission.admit(obj)
    assert admission.asked == []
    assert list(admission.folder.iterdir()) == []


def test_a_key_that_sglang_still_holds_is_a_conflict(admission: Admission) -> None:
    """Not a 400: the retry of a client that vanished must be able to wait and succeed."""
    manager = SimpleNamespace(**vars(MANAGER) | {"rid_to_state": {KEY: object()}})
    with pytest.raises(HTTPError, match="in flight") as caught:
        admission.admit(request(), manager)
    assert caught.value.status_code == 409


def publish(folder: Path, ids: list[int]) -> Receipt:
    """A dump of the key, as an earlier attempt left it."""
    draft = Receipt(
        key=KEY,
        attempt="earlier",
        path="",
        host="",
        spec_digest=SPEC.digest,
        num_tokens=len(ids),
        row_width=12,
        dtype="bfloat16",
        layers=SPEC.layers,
        norm="post",
        token_digest=Prompt(array("i", ids), ()).token_digest(),
        states_xxh3="0" * 16,
        sglang_version="",
        patch_version="",
    )
    reserve(folder, "earlier", layout_of(draft).file_bytes)
    dump = DumpFile(folder, draft)
    dump.write(0, array("i", ids).tobytes(), memoryview(bytes(24 * len(ids))))
    return dump.publish()


def test_a_known_key_is_answered_from_its_dump(admission: Admission) -> None:
    """SGLang is not asked, and the dump's time starts anew: its reader is on the way."""
    receipt = publish(admission.folder, IDS)
    path = admission.folder / dump_name(KEY)
    os.utime(path, (1, 1))
    (answer,) = admission.admit(request())
    assert answer["meta_info"][FIELD] == [receipt.to_json()]
    assert admission.asked == []
    assert path.stat().st_mtime > 1


def test_the_key_of_another_prompt_is_a_conflict(admission: Admission) -> None:
    """Nobody is given rows of tokens that they did not send."""
    publish(admission.folder, [9, 9, 9])
    with pytest.raises(HTTPError, match="another prompt") as caught:
        admission.admit(request())
    assert caught.value.status_code == 409


def test_a_dump_of_another_spec_is_a_conflict(
    admission: Admission, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an earlier server of the same folder left it, under a key that its client made up."""
    monkeypatch.setattr(SPEC.__class__, "digest", "f" * 32)
    publish(admission.folder, IDS)
    monkeypatch.undo()
    starlette_stand_in(monkeypatch)
    with pytest.raises(HTTPError, match=f"a dump of spec {'f' * 32}") as caught:
        admission.admit(request())
    assert caught.value.status_code == 409


def test_of_attempts_at_the_same_moment_one_is_computed(admission: Admission) -> None:
    """The others are told that the key is in flight; a 400 would make dead letters of them."""
    manager = SimpleNamespace(**vars(MANAGER) | {"rid_to_state": {}})
    side = TokenizerSide(PatchSettings(admission.folder, SPEC, (0, 2), keep_s=60))

    async def sglang(_manager: Any, obj: Any, _request: Any) -> AsyncIterator[dict[str, Any]]:
        if obj.rid in manager.rid_to_state:
            raise ValueError("Duplicate request ID detected")
        manager.rid_to_state[obj.rid] = obj
        await asyncio.sleep(0.05)  # all of them are here by now
        yield admission.answer

    async def ask() -> int:
        try:
            async for _ in side.around_generate_request(sglang, manager, request()):
                pass
        except HTTPError as error:
            return error.status_code
        return 200

    async def ask_all() -> list[int]:
        return await asyncio.gather(*(ask() for _ in range(8)))

    assert sorted(asyncio.run(ask_all())) == [200] + [409] * 7
    wait_until_empty(admission.folder)


def test_an_embedding_request_is_refused(admission: Admission) -> None:
    """SGLang gives its request another class, without most of the fields."""
    obj = SimpleNamespace(rid=KEY, input_ids=list(IDS), sampling_params=request().sampling_params)
    with pytest.raises(ValueError, match="only what /generate takes"):
        admission.admit(obj)


def test_the_weights_can_be_looked_at_and_not_changed(admission: Admission) -> None:
    """One action of SGLang's weight checker overwrites them with random numbers."""
    side = TokenizerSide(PatchSettings(admission.folder, SPEC, (0, 2), keep_s=60))

    async def check(_manager: Any, obj: Any, _request: Any) -> str:
        return f"done: {obj.action}"

    def ask(action: str) -> Any:
        obj = SimpleNamespace(action=action)
        return asyncio.run(side.around_check_weights(check, MANAGER, obj, None))

    assert ask("checksum") == "done: checksum"
    with pytest.raises(HTTPError, match="weights of a capturing server") as caught:
        ask("reset_tensors")
    assert caught.value.status_code == 409


def test_foreign_ids_are_refused_for_everyone(admission: Admission) -> None:
    """An id outside the vocabulary in any request would end the server."""
    obj = request(input_ids=[[1], [2, 500]])
    obj.sampling_params["custom_params"] = {}
    with pytest.raises(ValueError, match="token id 500"):
        admission.admit(obj)
