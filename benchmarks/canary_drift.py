"""What moves the canary's states, and by how much: the figures behind the bounds of the canary.

A real server computes the canary prompt alone; that is the record. Held against it are the same
server in company, where chunks and batches cut the prompt anywhere, which must pass, and HF
transformers with one thing changed, which mostly should not. All are the largest of the slots'
medians of relative row errors, as a worker computes them, given also in unit roundoffs u (2^-8 for
bfloat16, 2^-24 for float32).

A last table says, of small random models and without a server, what bfloat16 does to the middle row
and to the worst one: where a router of experts tips over, rows are far off that are right.

    python benchmarks/canary_drift.py
"""

import random
import shutil
import tempfile
import uuid
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
import transformers
from rich.console import Console
from rich.table import Table
from statetap_contract import CaptureSpec, Job, Prompt, ServerCapture
from statetap_local.models import smollm2, tiny_deepseek_v3, tiny_llama, tiny_qwen3_moe
from statetap_local.services import LocalServer
from statetap_worker.asking.server import Server
from statetap_worker.proving.canary import canary_prompt
from statetap_worker.proving.drift import median_row_errors
from statetap_worker.proving.dump import delete_dump, map_dump
from transformers import AutoModelForCausalLM

CACHE: Final = Path(__file__).resolve().parents[1] / ".cache" / "models"
NUM_COMPANIONS: Final = 8
NUM_ROUNDS: Final = 5
CHUNKS: Final = ("--chunked-prefill-size=48", "--enable-mixed-chunk")
ROUNDOFFS: Final = {"bfloat16": 2.0**-8, "float32": 2.0**-24}

States = npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison with the record."""

    what: str
    worst: float


def main() -> None:
    """Prints one table for each model and dtype, and that of the random models."""
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for name, folder, dtype in (
        ("random Llama", tiny_llama(CACHE), "float32"),
        ("SmolLM2-135M", smollm2(CACHE), "float32"),
        ("SmolLM2-135M", smollm2(CACHE), "bfloat16"),
    ):
        table = Table(title=f"{name}, {dtype}")
        table.add_column("held against the record")
        table.add_column("error", justify="right")
        table.add_column("in u", justify="right")
        for row in compare(folder, dtype):
            table.add_row(row.what, f"{row.worst:.2g}", f"{row.worst / ROUNDOFFS[dtype]:.3g}")
        Console().print(table)
    table = Table(title="HF in bfloat16 against HF in float32, in u")
    for column in ("random model", "middle row", "worst row"):
        table.add_column(column, justify="left" if column.startswith("r") else "right")
    for name, folder in (
        ("Llama", tiny_llama(CACHE)),
        ("Qwen3-MoE", tiny_qwen3_moe(CACHE)),
        ("DeepSeek-V3", tiny_deepseek_v3(CACHE)),
    ):
        table.add_row(name, *(f"{error / ROUNDOFFS['bfloat16']:.1f}" for error in half(folder)))
    Console().print(table)


def half(folder: Path) -> tuple[float, float]:
    """What bfloat16 costs: the largest of the slots' median row errors, and the worst row's."""
    token_ids = torch.arange(64, 320, 8)[None]
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        with torch.inference_mode():
            hidden = model(token_ids, output_hidden_states=True).hidden_states
        found.append(torch.stack([hidden[k][0] for k in (2, 4, 5, -1)]).double())
    errors = (found[1] - found[0]).norm(dim=2) / found[0].norm(dim=2)
    return errors.median(dim=1).values.max().item(), errors.max().item()


def compare(folder: Path, dtype: str) -> Iterator[Row]:
    """All comparisons of one model."""
    with started(folder, dtype) as (server, dumps):
        capture = handshake(server)
        spec = capture.spec
        record = states_of(server, dumps, capture)

        def held(what: str, states: States) -> Row:
            return Row(what, max(median_row_errors(states, record, spec).values()))

        yield held("server, alone again", states_of(server, dumps, capture))
        yield held("server, with others", in_company(server, dumps, capture, held))
    ids = torch.tensor([canary_prompt(capture).token_ids.tolist()])
    for what, states in mistakes(folder, ids, spec):
        yield held(f"HF, {what}", states)


@contextmanager
def started(folder: Path, dtype: str) -> Iterator[tuple[LocalServer, Path]]:
    """A server and its dump folder."""
    dumps = Path(tempfile.mkdtemp(prefix="statetap-canary-", dir="/dev/shm"))
    log = dumps / "server.log"
    arguments = [f"--dtype={dtype}", "--max-total-tokens=16384", *CHUNKS]
    try:
        server = LocalServer(folder, dumps, log, arguments=arguments)
        try:
            yield server, dumps
        finally:
            server.stop()
    finally:
        shutil.rmtree(dumps)


def handshake(server: LocalServer) -> ServerCapture:
    """What the server captures."""
    client = Server(server.url)
    return client.handshake()


def states_of(server: LocalServer, dumps: Path, capture: ServerCapture) -> States:
    """What the server computes of the canary prompt now."""
    return captured(server, dumps, capture.spec, canary_prompt(capture))


def captured(server: LocalServer, dumps: Path, spec: CaptureSpec, prompt: Prompt) -> States:
    """What the server computes of a prompt."""
    job = Job(uuid.uuid4().hex, "canary", spec.digest, prompt)
    client = Server(server.url)
    states = map_dump(dumps, client.capture(job)).states
    delete_dump(dumps, job.key)
    return states


def in_company(
    server: LocalServer, dumps: Path, capture: ServerCapture, held: Callable[[str, States], Row]
) -> States:
    """The worst of several rounds, each with other prompts of 20 to 150 tokens in flight."""
    generator = random.Random(0)
    with ThreadPoolExecutor(NUM_COMPANIONS + 1) as threads:
        rounds = []
        for _ in range(NUM_ROUNDS):
            lengths = [generator.randrange(20, 150) for _ in range(NUM_COMPANIONS)]
            others = [
                Prompt(array("i", [generator.randrange(20, 500) for _ in range(length)]), ())
                for length in lengths
            ]
            prompts = [*others[:4], canary_prompt(capture), *others[4:]]
            jobs = [
                threads.submit(captured, server, dumps, capture.spec, prompt) for prompt in prompts
            ]
            rounds.append([job.result() for job in jobs][4])
    return max(rounds, key=lambda states: held("", states).worst)


def mistakes(folder: Path, ids: torch.Tensor, spec: CaptureSpec) -> Iterator[tuple[str, States]]:
    """The prompt by HF transformers, with one thing changed at a time."""
    dtype = getattr(torch, spec.dtype)

    def load(of: torch.dtype = dtype) -> Any:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=of).eval()

    def run(
        model: Any, layers: tuple[int, ...] = spec.layers, token_ids: torch.Tensor = ids
    ) -> States:
        before_norm: list[torch.Tensor] = []
        hook = model.model.norm.register_forward_pre_hook(
            lambda _module, inputs: before_norm.append(inputs[0][0])
        )
        with torch.inference_mode():
            hidden = model(token_ids, output_hidden_states=True).hidden_states
        hook.remove()
        last = hidden[-1][0] if spec.norm == "post" else before_norm[0]
        return as_stored(torch.cat([*(hidden[layer][0] for layer in layers), last], dim=1), spec)

    yield "as it is", run(load())
    other = torch.bfloat16 if dtype == torch.float32 else torch.float32
    yield f"in {str(other).removeprefix('torch.')}", run(load(other))
    for scale in (0.0001, 0.001, 0.003, 0.01, 0.03):
        yield f"weights changed by {scale:.2%} each", run(changed(load(), perturb(scale)))
    yield (
        "layer below the last aux slot changed by 1%",
        run(changed(load(), perturb(0.01), f"layers.{max(spec.layers) - 1}.")),
    )
    yield "weights rounded to fp8 (e4m3)", run(changed(load(), to_fp8))
    yield "a rotary base 1% larger", run(with_rotary_base(load(), 1.01))
    yield "layers off by one", run(load(), tuple(layer - 1 for layer in spec.layers))
    yield "norm pre for post", run_norm(run, load())
    yield "a token later", run(load(), token_ids=torch.roll(ids, 1))


def run_norm(run: Callable[..., States], model: Any) -> States:
    """The last hidden state without the final norm."""
    model.model.norm = torch.nn.Identity()
    return run(model)


def as_stored(states: torch.Tensor, spec: CaptureSpec) -> States:
    """As a dump holds them."""
    rounded = states.to(getattr(torch, spec.dtype)).contiguous()
    if spec.dtype == "float32":
        array_: States = rounded.numpy()
        return array_
    bits: States = rounded.view(torch.int16).numpy().view("<u2")
    return bits


def changed(model: Any, change: Callable[[torch.Tensor], torch.Tensor], within: str = "") -> Any:
    """The model with its matrices, those of some layers or all, put through a function."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and within in name:
                weight.copy_(change(weight.float()).to(weight.dtype))
    return model


def perturb(scale: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Each weight by a normal deviate of this size relative to it."""
    return lambda weight: weight * (1 + scale * torch.randn_like(weight))


def to_fp8(weight: torch.Tensor) -> torch.Tensor:
    """Rounded as a server with quantised weights has them, one scale a matrix."""
    scale = weight.abs().max() / 448
    return (weight / scale).to(torch.float8_e4m3fn).float() * scale


def with_rotary_base(model: Any, factor: float) -> Any:
    """The model with another base of its rotary position embedding."""
    rotary = model.model.rotary_emb
    half = torch.arange(len(rotary.inv_freq)) / len(rotary.inv_freq)
    rotary.inv_freq *= factor**-half
    return model


if __name__ == "__main__":
    main()
