"""When the answer of a captured request goes out, and with what in it."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from statetap_contract import FIELD, CaptureRequest, CaptureSpec, dump_name
from statetap_contract.dump import DumpLayout
from statetap_patch.capture import Capture
from statetap_patch.dump_writer import DumpWriter
from statetap_patch.guard import Guard
from statetap_patch.ring import Ring
from statetap_patch.scheduler_side import SchedulerSide
from statetap_patch.settings import PatchSettings
from statetap_patch.space import reserve
from statetap_patch.transfer import Transfer

KEY = "0123456789abcdef" * 2
SPEC = CaptureSpec("m", "r", (1,), "post", 4, "float32")
IDS = [11, 12, 13]


class FinishAbort:
    """Stands for SGLang's FINISH_ABORT."""

    def __init__(self, message: str, status_code: int, err_type: str) -> None:
        self.message, self.status_code, self.err_type = message, status_code, err_type


class Bench:
    """A scheduler side with one finished request, and what it sent out."""

    def __init__(self, folder: Path) -> None:
        self.guard = Guard()
        self.side = SchedulerSide(PatchSettings(folder, SPEC, (0,), keep_s=60), self.guard)
        ring = Ring(is_pinned=False, num_buffers=4, buffer_bytes=1 << 12)
        self.writer = DumpWriter(
            folder,
            SPEC,
            transfer=Transfer(ring, SPEC),
            sglang_version="0.5.23",
            patch_version="0.1.0",
        )
        self.side._state.writer = self.writer
        reserve(folder, "a1", DumpLayout(3, 8, "float32").file_bytes)
        self.capture = Capture(self.writer, CaptureRequest(KEY, 3, SPEC.digest), "a1", IDS)
        self.writer.open(self.capture)
        self.sent: list[Any] = []
        self.req = SimpleNamespace(
            finished=lambda: True,
            finished_output=False,
            finished_reason="length",
            customized_info=None,
            _statetap_capture=self.capture,
        )

    def original(self, _streamer: Any, reqs: list[Any], *_: Any) -> None:
        self.sent += reqs
        for req in reqs:
            req.finished_output = True

    def stream_output(
        self, reqs: list[Any], return_logprob: object = None, skip_req: Any = None
    ) -> None:
        """SGLang's method as the hook leaves it: this bench is the streamer."""
        hook = self.guard.around(self.side.around_stream_output)
        hook(self.original, self, reqs, return_logprob, skip_req)

    def stream(self, *, skip: bool = False) -> None:
        self.stream_output([self.req], skip_req=self.req if skip else None)

    def turn(self) -> None:
        """One turn of the event loop."""
        self.side.before_process_input()

    def take_all_rows(self) -> None:
        aux, last = torch.ones(3, 4), torch.full((3, 4), 2.0)
        self.capture.take_rows(
            prefix=0, length=3, batch_start=0, input_ids=torch.tensor(IDS), slots=(aux, last)
        )

    def wait_until_settled(self) -> None:
        for _ in range(100):
            if not self.capture.is_open:
                return
            self.writer.settled.wait(0.1)
            self.writer.settled.clear()
        pytest.fail("the capture never ended")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    module = ModuleType("sglang.srt.managers.schedule_batch")
    module.FINISH_ABORT = FinishAbort  # type: ignore[attr-defined]
    for name in ("sglang", "sglang.srt", "sglang.srt.managers"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return Bench(tmp_path)


def hold(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The request finishes while its dump is still being written; returns what is being written."""
    queued: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(DumpWriter, "enqueue", lambda _writer, *work: queued.append(work))
        bench.take_all_rows()
    bench.stream()
    assert bench.sent == []
    return queued


def test_an_answer_goes_out_with_its_receipt(bench: Bench) -> None:
    """Once the dump is there."""
    bench.take_all_rows()
    bench.wait_until_settled()
    bench.stream()
    assert bench.sent == [bench.req]
    (receipt,) = bench.req.customized_info[FIELD]
    assert receipt["key"] == KEY
    assert receipt["num_tokens"] == 3


def test_an_answer_waits_for_its_dump(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn after turn; it is sent once, however often SGLang brings it."""
    (work,) = hold(bench, monkeypatch)
    bench.stream()
    bench.turn()
    assert bench.sent == []
    bench.writer.enqueue(*work)
    bench.wait_until_settled()
    bench.turn()
    bench.turn()
    assert bench.sent == [bench.req]


def test_a_dump_that_never_comes_fails_the_request(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a 504 when the time is up, not before."""
    hold(bench, monkeypatch)
    deadline_s = bench.side._state.held[id(bench.req)].deadline_s
    monkeypatch.setattr("statetap_patch.scheduler_side.time.monotonic", lambda: deadline_s)
    bench.turn()
    assert bench.sent == []
    monkeypatch.setattr("statetap_patch.scheduler_side.time.monotonic", lambda: deadline_s + 1)
    bench.turn()
    assert bench.sent == [bench.req]
    assert bench.req.finished_reason.status_code == 504


def test_missing_rows_fail_the_request(bench: Bench) -> None:
    """A finish without all rows is an error with a number, never a short dump."""
    bench.stream()
    assert bench.sent == [bench.req]
    assert "3 of 3 rows were not computed" in bench.req.finished_reason.message
    assert bench.req.finished_reason.status_code == 500


def test_an_abort_of_a_held_request_is_answered_at_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its own reason; the rows are all there, so that the dump is made for the retry."""
    (work,) = hold(bench, monkeypatch)
    reason = FinishAbort("by the client", 499, "")
    bench.req.finished_reason = reason
    bench.turn()
    assert bench.sent == [bench.req]
    assert bench.req.finished_reason is reason
    assert bench.req.customized_info is None
    bench.writer.enqueue(*work)
    bench.wait_until_settled()
    assert bench.capture.receipt is not None
    assert (bench.writer.folder / dump_name(KEY)).exists()


@pytest.mark.parametrize("is_queued", [True, False])
def test_an_abort_before_the_last_row_ends_the_capture(bench: Bench, is_queued: bool) -> None:  # noqa: FBT001
    """Whether SGLang ends it in its queue or through the output stream."""
    bench.req.finished_reason = FinishAbort("by the client", 499, "")
    if is_queued:
        bench.side.before_abort_output(None, None, bench.req)
    else:
        bench.stream()
        assert bench.sent == [bench.req]
    assert "the request was aborted" in str(bench.capture.error)


def test_an_error_of_sglangs_own_is_not_swallowed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A held answer that SGLang cannot send would otherwise be lost without a word."""
    (work,) = hold(bench, monkeypatch)
    bench.writer.enqueue(*work)
    bench.wait_until_settled()

    def broken(*_: Any) -> None:
        raise ConnectionError("SGLang's socket")

    monkeypatch.setattr(bench, "original", broken)
    with pytest.raises(ConnectionError, match="SGLang's socket"):
        bench.turn()
    assert bench.guard.num_errors == 0


def test_a_dead_writer_fails_the_request(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, instead of after the time for holding."""
    hold(bench, monkeypatch)
    monkeypatch.setattr(DumpWriter, "is_alive", False)
    bench.turn()
    assert bench.sent == [bench.req]
    assert "a writer thread is dead" in bench.req.finished_reason.message


def test_a_skipped_request_is_passed_on(bench: Bench) -> None:
    """SGLang names requests that it will not stream this time."""
    bench.stream(skip=True)
    assert bench.sent == [bench.req]
    assert bench.capture.is_open


def test_requests_without_a_capture_pass(bench: Bench) -> None:
    """Ordinary traffic is not looked at."""
    plain = SimpleNamespace(finished=lambda: True, finished_output=False)
    bench.stream_output([plain])
    assert bench.sent == [plain]


def test_captured_and_plain_answers_go_out_apart(bench: Bench) -> None:
    """In one message SGLang would give the plain one an empty receipt."""
    messages: list[list[Any]] = []
    plain = SimpleNamespace(finished=lambda: True, finished_output=False)
    bench.take_all_rows()
    bench.wait_until_settled()
    bench.side.around_stream_output(
        lambda _streamer, reqs, *_: messages.append(reqs), None, [bench.req, plain], False
    )
    assert messages == [[plain], [bench.req]]


def extend_batch(reqs: list[Any], prefixes: list[int], ids: list[int]) -> SimpleNamespace:
    """A batch of three rows for each request."""
    return SimpleNamespace(
        reqs=reqs,
        prefix_lens=prefixes,
        extend_lens=[3] * len(reqs),
        input_ids=torch.tensor(ids),
        forward_mode=SimpleNamespace(is_extend=lambda: True),
    )


def forward(bench: Bench, batch: SimpleNamespace, num_rows: int) -> None:
    states = torch.arange(4.0 * num_rows).reshape(num_rows, 4)
    output = SimpleNamespace(hidden_states=states, last_hidden_states=states + 100)
    hook = bench.guard.beside(bench.side.after_forward)
    hook(SimpleNamespace(logits_output=output), None, batch)


def test_rows_are_cut_out_of_a_batch_by_position(bench: Bench) -> None:
    """Rows of requests that do not capture lie before them; padding may follow."""
    plain = SimpleNamespace()
    forward(bench, extend_batch([plain, bench.req], [7, 0], [1, 2, 3, *IDS]), 8)
    bench.wait_until_settled()
    assert bench.capture.error is None
    states = load_file(bench.writer.folder / dump_name(KEY))["states"]
    assert states[:, 0].tolist() == [12, 16, 20]  # rows 3 to 5 of the batch, 4 columns each
    assert states[:, 4].tolist() == [112, 116, 120]


def test_a_batch_with_too_few_rows_fails_its_captures(bench: Bench) -> None:
    """It is counted and logged, and the server lives."""
    forward(bench, extend_batch([bench.req], [0], IDS), 2)
    assert "3 rows, but 2 of aux states" in str(bench.capture.error)
    assert bench.guard.num_errors == 1


def test_states_before_the_norm_are_those_of_the_same_pass(bench: Bench) -> None:
    """A pass in which the norm's hook did not run fails; what an earlier pass left is not used."""
    kept = iter([torch.zeros(6, 4), None])
    bench.side._state.final_norm_input = SimpleNamespace(take=lambda: next(kept))  # type: ignore[assignment]
    forward(bench, extend_batch([SimpleNamespace()], [0], [1, 2, 3]), 3)  # captures nothing
    forward(bench, extend_batch([bench.req], [0], IDS), 3)
    assert "3 rows, but 0 of last state" in str(bench.capture.error)


def test_a_hook_that_fails_lets_the_answer_go(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a receipt, which admission turns into an error; the failure is counted."""
    monkeypatch.setattr(SchedulerSide, "_is_unsettled", lambda *_: 1 / 0)
    bench.stream()
    assert bench.sent == [bench.req]
    assert bench.req.customized_info is None
    assert bench.guard.num_errors == 1
