"""Admission: what is refused, answered at once, or passed on."""

import asyncio
import sys
from array import array
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from statetap_contract import FIELD, CaptureRequest, CaptureSpec, Prompt, sample_key
from statetap_patch.settings import PatchSettings
from statetap_patch.tokenizer_side import TokenizerSide

SPEC = CaptureSpec("m", "r", (1, 3), "post", 4, "bfloat16")
IDS = [5, 6, 7]
KEY = sample_key(SPEC.digest, Prompt(array("i", IDS), ()))
MANAGER = SimpleNamespace(model_config=SimpleNamespace(vocab_size=100), rid_to_state={})


def request(**changes: Any) -> SimpleNamespace:
    """What SGLang makes of a well-formed capture request, with changes."""
    wanted: Any = changes.pop("wanted", CaptureRequest(KEY, 3, SPEC.digest).to_json())
    fields: dict[str, Any] = {
        "rid": KEY,
        "input_ids": list(IDS),
        "sampling_params": {"max_new_tokens": 0, "custom_params": {FIELD: wanted}},
        "stream": False,
        "session_params": None,
        "input_embeds": None,
        "lora_path": None,
    }
    fields["sampling_params"] |= changes.pop("params", {})
    return SimpleNamespace(**(fields | changes))


def admit(
    folder: Path, obj: SimpleNamespace, manager: SimpleNamespace = MANAGER
) -> tuple[list[Any], list[Any]]:
    """The answers, and what SGLang itself was asked."""
    asked: list[Any] = []

    async def sglang(_manager: Any, obj: Any, _request: Any) -> AsyncIterator[dict[str, Any]]:
        asked.append(obj.sampling_params["custom_params"].get(FIELD))
        yield {"meta_info": {"finish_reason": {"type": "length"}}}

    async def collect() -> list[Any]:
        side = TokenizerSide(PatchSettings(folder, SPEC, (0, 2)))
        return [answer async for answer in side.around_generate_request(sglang, manager, obj)]

    return asyncio.run(collect()), asked


def test_a_good_request_goes_on_with_an_attempt_id(tmp_path: Path) -> None:
    """The id is made once, here, so that all ranks see the same."""
    answers, asked = admit(tmp_path, request())
    assert len(answers) == 1
    assert asked[0]["key"] == KEY
    assert len(asked[0]["attempt"]) == 32


def test_ordinary_traffic_passes_untouched(tmp_path: Path) -> None:
    """Capture is opt-in."""
    obj = request()
    obj.sampling_params["custom_params"] = {"other": 1}
    answers, asked = admit(tmp_path, obj)
    assert (len(answers), asked) == (1, [None])


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
        ({"params": {"n": 2}}, "n above 1 cannot"),
        ({"session_params": {"id": "s"}}, "a session cannot"),
        ({"input_embeds": [[0.0]]}, "input_embeds cannot"),
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
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    """ValueError is what SGLang answers with a 400."""
    obj = request(**{k: v for k, v in changes.items() if k != "sampling_params"})
    if "sampling_params" in changes:
        obj.sampling_params = changes["sampling_params"]
    with pytest.raises(ValueError, match=reason):
        admit(tmp_path, obj)


def test_a_key_that_sglang_still_holds_is_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a 400: the retry of a client that vanished must be able to wait and succeed."""

    class HTTPError(Exception):  # fastapi is there only beside SGLang
        def __init__(self, status_code: int, detail: str) -> None:
            super().__init__(detail)
            self.status_code = status_code

    fastapi = ModuleType("fastapi")
    fastapi.HTTPException = HTTPError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fastapi", fastapi)
    manager = SimpleNamespace(model_config=MANAGER.model_config, rid_to_state={KEY: object()})
    with pytest.raises(HTTPError, match="in flight") as caught:
        admit(tmp_path, request(), manager)
    assert caught.value.status_code == 409


def test_foreign_ids_are_refused_for_everyone(tmp_path: Path) -> None:
    """An id outside the vocabulary in any request would end the server."""
    obj = request(input_ids=[[1], [2, 500]])
    obj.sampling_params["custom_params"] = {}
    with pytest.raises(ValueError, match="token id 500"):
        admit(tmp_path, obj)
