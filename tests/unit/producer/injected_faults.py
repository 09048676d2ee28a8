"""A tiny Llama's states with known faults, computed by hooks on the model itself.

No code under test is used: what the crosscheck should say of them is known from how they are made.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

LAYERS = (2, 4, 5)
NUM_LAYERS = 8
HIDDEN = 64
BOS = 0

#: The last boundary after the final norm.
NORMED = NUM_LAYERS + 1

#: For one prompt: each boundary, the last one before the norm, and then after it, [n, 64] each.
Boundaries = list[torch.Tensor]


def token_ids(num_samples: int = 6) -> list[list[int]]:
    """Prompts of 40 to 65 tokens that begin alike, the BOS in front."""
    generator = torch.Generator().manual_seed(7)
    system = torch.randint(2, 512, (5,), generator=generator).tolist()
    return [
        [BOS, *system, *torch.randint(2, 512, (34 + 5 * number,), generator=generator).tolist()]
        for number in range(num_samples)
    ]


class World:
    """The model in one dtype."""

    def __init__(self, folder: Path, dtype: str, norm: str = "post") -> None:
        self.dtype = getattr(torch, dtype)
        self.norm = norm
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=self.dtype).eval()
        self.prompts = token_ids()

    def boundaries(
        self, ids: list[int], positions: list[int] | None = None, model: Any = None
    ) -> Boundaries:
        """Taken on the way into each layer, and into and out of the norm."""
        model = (self.model if model is None else model).model
        found: Boundaries = []
        hooks = [
            *(
                layer.register_forward_pre_hook(lambda _, args: found.append(args[0][0].clone()))
                for layer in model.layers
            ),
            model.norm.register_forward_hook(
                lambda _, args, output: found.extend((args[0][0].clone(), output[0].clone()))
            ),
        ]
        mask = torch.ones(1, len(ids), dtype=torch.long)
        where = None if positions is None else torch.tensor([positions])
        with torch.inference_mode():
            model(torch.tensor([ids]), attention_mask=mask, position_ids=where)
        for hook in hooks:
            hook.remove()
        return found

    def slots(self, found: Boundaries, *, layers: tuple[int, ...] = LAYERS) -> list[torch.Tensor]:
        """What a row holds of these boundaries."""
        last = found[NORMED if self.norm == "post" else NUM_LAYERS]
        return [*(found[layer] for layer in layers), last]

    def right(self, ids: list[int]) -> list[torch.Tensor]:
        """The slots of one prompt."""
        return self.slots(self.boundaries(ids))

    def apply_norm(self, rows: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            normed: torch.Tensor = self.model.model.norm(rows)
        return normed

    def changed(self, change: Callable[[Any], None]) -> Any:
        """The model with other weights."""
        model = copy.deepcopy(self.model)
        with torch.no_grad():
            change(model.model)
        return model


#: Makes the slots of every prompt, [n, 64] each.
Fault = Callable[[World], list[list[torch.Tensor]]]


@dataclass(frozen=True)
class Injected:
    """A fault, and what should be said of it."""

    what: str
    kind: str
    make: Fault
    slots: str = "h2 h4 h5 last"
    #: A word of the sentence that only this fault has.
    word: str = ""
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    norm: str = "post"


def _rows(change: Callable[[torch.Tensor], torch.Tensor], *slots: int) -> Fault:
    """Changes the rows of some slots, or of all."""

    def make(world: World) -> list[list[torch.Tensor]]:
        return [
            [
                change(rows) if slot in slots or not slots else rows
                for slot, rows in enumerate(world.right(ids))
            ]
            for ids in world.prompts
        ]

    return make


def _slots(choose: Callable[[World, Boundaries], list[torch.Tensor]]) -> Fault:
    """Puts other boundaries into the slots."""
    return lambda world: [choose(world, world.boundaries(ids)) for ids in world.prompts]


def _whole(change: Callable[[torch.Tensor], torch.Tensor]) -> Fault:
    """Changes a prompt's states as they lie in memory, [n, 256]."""
    return lambda world: [
        list(torch.split(change(torch.cat(world.right(ids), dim=1)), HIDDEN, dim=1))
        for ids in world.prompts
    ]


def _weights(change: Callable[[Any], None]) -> Fault:
    """Computes with other weights."""

    def make(world: World) -> list[list[torch.Tensor]]:
        model = world.changed(change)
        return [world.slots(world.boundaries(ids, model=model)) for ids in world.prompts]

    return make


def _random(rows: torch.Tensor) -> torch.Tensor:
    """Others of the same size, always the same ones."""
    noise = torch.randn(rows.shape, generator=torch.Generator().manual_seed(3))
    return (noise * rows.float().std()).to(rows.dtype)


def _put(start: int, stop: int, value: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Changes rows start to stop alone."""

    def change(rows: torch.Tensor) -> torch.Tensor:
        rows = rows.clone()
        rows[start:stop] = value(rows)[start:stop]
        return rows

    return change


def _shuffle_weights(*names: str) -> Callable[[Any], None]:
    """Draws weights anew, of the same deviation; those whose names begin so."""

    def change(model: Any) -> None:
        generator = torch.Generator().manual_seed(11)
        for name, weight in model.named_parameters():
            if name.startswith(names) and weight.ndim > 1:
                noise = torch.randn(weight.shape, generator=generator)
                weight.copy_(noise * weight.float().std())

    return change


def _jitter(model: Any) -> None:
    generator = torch.Generator().manual_seed(5)
    for weight in model.parameters():
        weight.mul_(1 + 0.008 * torch.randn(weight.shape, generator=generator))


def _other_rope(model: Any) -> None:
    model.rotary_emb.inv_freq.mul_(0.5)


def _bos_in_front(world: World, start: int) -> list[list[torch.Tensor]]:
    return [
        [rows[start : start + len(ids)] for rows in world.right([BOS, *ids])]
        for ids in world.prompts
    ]


def _first_left_out(world: World) -> list[list[torch.Tensor]]:
    return [
        [torch.cat([_random(rows[:1]), rows]) for rows in world.right(ids[1:])]
        for ids in world.prompts
    ]


def _in_chunks(*starts: int) -> Fault:
    """Chunks that know nothing of those before."""

    def make(world: World) -> list[list[torch.Tensor]]:
        found = []
        for ids in world.prompts:
            ends = (*starts[1:], len(ids))
            pieces = [world.right(ids[: starts[0]])]
            pieces += [world.right(ids[a:b]) for a, b in zip(starts, ends, strict=True)]
            found.append([torch.cat(rows) for rows in zip(*pieces, strict=True)])
        return found

    return make


def _without_prefix(world: World) -> list[list[torch.Tensor]]:
    return [
        [torch.nn.functional.pad(rows, (0, 0, 12, 0)) for rows in world.right(ids[12:])]
        for ids in world.prompts
    ]


def _at(positions: Callable[[int], list[int]]) -> Fault:
    return lambda world: [
        world.slots(world.boundaries(ids, positions(len(ids)))) for ids in world.prompts
    ]


def _exchanged(start: int) -> Fault:
    """Rows from ``start`` on are those of the next, longer sample; the last has its own."""

    def make(world: World) -> list[list[torch.Tensor]]:
        right = [world.right(ids) for ids in world.prompts]
        mixed = [
            [
                torch.cat([rows[:start], other[start : len(rows)]])
                for rows, other in zip(right[number], right[number + 1], strict=True)
            ]
            for number in range(len(right) - 1)
        ]
        return [*mixed, right[-1]]

    return make


def _as_other_half(states: torch.Tensor) -> torch.Tensor:
    """bfloat16 as the bits of float16, or the other way round."""
    other = torch.float16 if states.dtype == torch.bfloat16 else torch.bfloat16
    return states.to(other).view(states.dtype)


def _with_bytes_swapped(states: torch.Tensor) -> torch.Tensor:
    integers = states.contiguous().view(_INTEGERS[states.dtype])
    return torch.from_numpy(integers.numpy().byteswap()).view(states.dtype)


_INTEGERS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}

_HALVES = ("bfloat16", "float16")


def _interleave(states: torch.Tensor) -> torch.Tensor:
    return torch.stack(torch.split(states, HIDDEN, dim=1), dim=2).flatten(1)


def _stack(states: torch.Tensor) -> torch.Tensor:
    return torch.cat(torch.split(states, HIDDEN, dim=1)).reshape(states.shape)


FAULTS = (
    Injected("rows of the token before", "rows-shifted", _rows(lambda r: r.roll(1, 0)),
             word="before"),
    Injected("rows of the token after", "rows-shifted", _rows(lambda r: r.roll(-1, 0)),
             word="after"),
    Injected("rows five places off", "rows-shifted", _rows(lambda r: r.roll(5, 0)),
             word="5 places before"),
    Injected("rows shifted in one slot", "rows-shifted", _rows(lambda r: r.roll(1, 0), 1), "h4"),
    Injected("rows backwards", "rows-reordered", _rows(lambda r: r.flip(0))),
    Injected("halves exchanged", "rows-reordered",
             _rows(lambda r: torch.cat([r[30:], r[:30]]).clone())),
    Injected("the next layer", "layer-off-by-one",
             _slots(lambda w, b: w.slots(b, layers=(3, 5, 6))), "h2 h4 h5", "next"),
    Injected("the previous layer", "layer-off-by-one",
             _slots(lambda w, b: w.slots(b, layers=(1, 3, 4))), "h2 h4 h5", "previous"),
    Injected("the previous layer in one slot", "layer-off-by-one",
             _slots(lambda w, b: w.slots(b, layers=(2, 3, 5))), "h4", "previous"),
    Injected("another layer", "other-layer",
             _slots(lambda w, b: w.slots(b, layers=(2, 4, 7))), "h5", "boundary 7"),
    Injected("two slots swapped", "slots-swapped",
             _slots(lambda w, b: w.slots(b, layers=(5, 4, 2))), "h2 h5", "h2 holds h5"),
    Injected("slots turned round", "slots-swapped",
             _slots(lambda _, b: [b[NORMED], b[2], b[4], b[5]]), word="h2 holds last"),
    Injected("no final norm", "norm-missing",
             _slots(lambda w, b: [*w.slots(b)[:3], b[NUM_LAYERS]]), "last"),
    Injected("final norm twice", "norm-twice",
             _slots(lambda w, b: [*w.slots(b)[:3], w.apply_norm(b[NORMED])]), "last"),
    Injected("final norm where none should be", "norm-applied",
             _slots(lambda w, b: [*w.slots(b)[:3], b[NORMED]]), "last", norm="pre"),
    Injected("final norm of an aux layer", "norm-applied",
             _slots(lambda w, b: [b[2], w.apply_norm(b[4]), b[5], b[NORMED]]), "h4"),
    Injected("final norm of the layer before", "layer-off-by-one",
             _slots(lambda w, b: [*w.slots(b)[:3], w.apply_norm(b[7])]), "last", "previous"),
    Injected("final norm without its weight", "norm-unweighted",
             _slots(lambda w, b: [*w.slots(b)[:3],
                                  b[8] / b[8].float().square().mean(1, True).sqrt().to(w.dtype)]),
             "last"),
    Injected("zeros in one slot", "zero-rows", _rows(torch.zeros_like, 2), "h5", "all rows"),
    Injected("some rows zero", "zero-rows", _rows(_put(20, 30, torch.zeros_like)),
             word="10 rows"),
    Injected("one row for all", "rows-repeated",
             _rows(lambda r: r[9].expand_as(r).clone())),
    Injected("a buffer that got stuck", "rows-repeated",
             _rows(_put(20, 99, lambda r: r[19].expand_as(r)))),
    Injected("every third row three times", "rows-repeated",
             _rows(lambda r: r[::3].repeat_interleave(3, 0)[:len(r)].clone()),
             word="several times"),
    Injected("infinite elements", "not-finite",
             _rows(_put(3, 9, lambda r: torch.full_like(r, torch.inf)), 3), "last"),
    Injected("all too large", "scaled", _rows(lambda r: r * 1.25), word="1.25"),
    Injected("a little too large", "scaled", _rows(lambda r: r * 1.003), word="1.003",
             dtypes=("float32",)),
    Injected("one slot negative", "scaled", _rows(lambda r: -r, 0), "h2", "-1"),
    Injected("the other half precision", "misread-dtype", _whole(_as_other_half),
             dtypes=_HALVES),
    Injected("bytes the other way round", "byte-swapped", _whole(_with_bytes_swapped)),
    Injected("rounded to bfloat16", "rounded", _rows(lambda r: r.bfloat16().float()),
             word="bfloat16", dtypes=("float32",)),
    Injected("elements of slots in turn", "layout-differs", _whole(_interleave), word="turn"),
    Injected("slot after slot for the whole prompt", "layout-differs", _whole(_stack),
             word="together"),
    Injected("a BOS in front, its row left out", "bos-added", lambda w: _bos_in_front(w, 1)),
    Injected("a BOS in front, its row first", "bos-added", lambda w: _bos_in_front(w, 0),
             word="begin with its row"),
    Injected("no BOS", "bos-missing", _first_left_out),
    Injected("a chunk alone", "chunks-alone", _in_chunks(17), word="row 17"),
    Injected("two chunks alone", "chunks-alone", _in_chunks(16, 32), word="rows 16, 32"),
    Injected("nobody computed the prefix", "prefix-missing", _without_prefix, word="12 tokens"),
    Injected("no positions", "positions-missing", _at(lambda n: [0] * n)),
    Injected("positions from 0 in a second chunk", "positions-restarted",
             _at(lambda n: [*range(20), *range(n - 20)]), word="row 20"),
    Injected("states of another sample", "other-sample", _exchanged(0)),
    Injected("rows of another sample from 20 on", "other-sample", _exchanged(20)),
    Injected("rows of nobody at the beginning", "prefix-wrong", _rows(_put(0, 11, _random)),
             word="first 11"),
    Injected("rows of nobody at the end", "tail-wrong", _rows(_put(23, 99, _random)),
             word="row 23"),
    Injected("rows of nobody in between", "rows-wrong", _rows(_put(23, 29, _random)),
             word="6 rows between rows 23 and 28"),
    Injected("one row of nobody", "rows-wrong", _rows(_put(31, 32, _random), 1), "h4",
             "row 31"),
    Injected("another RoPE", "attention-differs", _weights(_other_rope)),
    Injected("another embedding", "input-differs", _weights(_shuffle_weights("embed"))),
    Injected("another layer 4", "layers-differ", _weights(_shuffle_weights("layers.4.")),
             "h5 last", "between boundaries 4 and 5"),
    Injected("another last layer", "layers-differ", _weights(_shuffle_weights("layers.7.")),
             "last", "between boundaries 5 and 8"),
    Injected("weights that are off by 0.8 %", "unexplained", _weights(_jitter), "h4 h5 last",
             dtypes=_HALVES[:1]),
    Injected("other weights", "other-weights", _weights(_shuffle_weights(""))),
)  # fmt: skip
