"""Exports, read back by the loaders of the trainers they are for.

Each trainer's own code runs in an environment of its own, ``.venv-peers``; what it gives is held
against what plain h5py reads from the shards, and against HF transformers.
"""

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from .peer_samples import VOCABULARY, PeerData, PeerSample
from .trainer_view import BATCH_OF, SAMPLE_OF, Tensors, differences

#: Trainer -> the norm of the last hidden states that it reads as they are.
NATIVE = {"specforge": "post", "speculators": "pre", "modelopt": "post", "angelslim": "post"}
TRAINERS = tuple(NATIVE)

DRAFT_VOCABULARY = 64
VAL_FRACTION = "0.3"

#: A bfloat16 has 8 significant bits: it is at most this far from what was rounded, relatively.
ROUNDING = 2**-8
#: States are rounded when they are exported, and the mean of their squares with them.
EXPORTED_ROUNDING = 2 * ROUNDING
#: In a training in bfloat16 so are the norm's weights, what it normalises and what it multiplies.
TRAINING_ROUNDING = 5 * ROUNDING
#: States before the norm are rounded when they are captured, and when they are exported.
NORMED_ROUNDING = 3 * ROUNDING

#: What a trainer's loader made of one export: the names in its file as a tree, or its error.
Reading = dict[str, Any]
Read = Callable[[str, str], Reading]


class PeerError(Exception):
    """A trainer's loader ended with an error."""


@pytest.fixture(scope="module")
def data(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> PeerData:
    return PeerData.make(tiny_model, tmp_path_factory.mktemp("peers"))


@pytest.fixture(scope="module")
def read(repository: Path, data: PeerData, tmp_path_factory: pytest.TempPathFactory) -> Read:
    """``read(trainer, name)``: an export by the command, as the trainer's own loader reads it.

    Names are ``post`` and ``pre``, of samples of that norm; ``split``, with samples held out; and
    one for each damage. One process reads all that a trainer is given, once.
    """
    python = repository / ".venv-peers" / "bin" / "python"
    if not python.exists():
        pytest.fail(f"{python} is missing: run make peers")
    outs: dict[str, Path] = {}

    def read_all(trainer: str, folder: Path) -> None:
        jobs = [
            argument
            for name, exported in exports(trainer, data, folder).items()
            for argument in (exported, folder / f"{name}.safetensors")
        ]
        script = repository / "tests" / "acceptance" / "peers" / f"read_{trainer}.py"
        ended = subprocess.run(
            [python, script, data.model, *jobs],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert ended.returncode == 0, ended.stderr

    def reading(trainer: str, name: str) -> Reading:
        if trainer not in outs:
            folder = tmp_path_factory.mktemp(trainer)
            read_all(trainer, folder)
            outs[trainer] = folder
        out = outs[trainer] / f"{name}.safetensors"
        error = Path(f"{out}.error")
        if error.exists():
            raise PeerError(error.read_text())
        return tree_of(load_file(out))

    return reading


def exports(trainer: str, data: PeerData, folder: Path) -> dict[str, Path]:
    """Makes all exports for a trainer, and damaged copies of one."""
    held_out = ("--val-fraction", VAL_FRACTION)
    made = {
        "post": export(trainer, data.post, data.model, folder / "post"),
        "pre": export(trainer, data.pre, data.model, folder / "pre"),
        "split": export(trainer, data.post, data.model, folder / "split", *held_out),
    }
    for damage, do in DAMAGES.items():
        made[damage] = Path(shutil.copytree(made[NATIVE[trainer]], folder / damage))
        do(*(place_of(trainer, made[damage], number) for number in (8, 9)))
    return made


def export(trainer: str, shards: Path, model: Path, out: Path, *options: str) -> Path:
    """Runs the command."""
    program = Path(sys.executable).parent / "statetap"
    command: list[str | Path] = [program, "export", shards, "--to", trainer, "--out", out]
    command += ["--model", model, "--draft-vocab-size", str(DRAFT_VOCABULARY), *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return out


def tree_of(tensors: dict[str, torch.Tensor]) -> Reading:
    """``a/b/c`` becomes ``["a"]["b"]["c"]``."""
    tree: Reading = {}
    for name, tensor in tensors.items():
        *parents, leaf = name.split("/")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        place[leaf] = tensor
    return tree


def samples_of(tree: dict[str, Any], split: str = "train") -> list[Tensors]:
    """A split's samples in their order."""
    return [tree[split][number] for number in sorted(tree.get(split, {}))]


def stored(data: PeerData, norm: str) -> list[PeerSample]:
    return PeerSample.read_all({"post": data.post, "pre": data.pre}[norm])


@pytest.mark.parametrize("trainer", TRAINERS)
def test_each_sample_is_read_as_it_was_stored(trainer: str, data: PeerData, read: Read) -> None:
    """Ids, masks and states: count, order, shapes, dtypes and every byte."""
    norm = NATIVE[trainer]
    tree = read(trainer, norm)
    expected = [SAMPLE_OF[trainer](sample) for sample in stored(data, norm)]
    assert differences(samples_of(tree), expected) == []
    assert differences([tree["batch"]], [BATCH_OF[trainer](expected[:3])]) == []


def test_speculators_own_norm_gives_the_states_after_the_norm(data: PeerData, read: Read) -> None:
    """States stored after the norm are exported so that the norm of its training restores them."""
    tree = read("speculators", "post")
    post = torch.cat([sample.last for sample in stored(data, "post")]).float()
    assert_close(tree["normed"]["float32"], post, EXPORTED_ROUNDING)
    assert_close(tree["normed"]["bfloat16"].float(), post, TRAINING_ROUNDING)
    found, expected = samples_of(tree), stored(data, "post")
    # The rest is as it was.
    for name in ("input_ids", "loss_mask", "hidden_states"):
        wanted = [{name: SAMPLE_OF["speculators"](sample)[name]} for sample in expected]
        assert differences([{name: sample[name]} for sample in found], wanted) == []


@pytest.mark.parametrize(
    ("trainer", "name"), [("specforge", "target"), ("angelslim", "target_hiddens")]
)
def test_states_before_the_norm_are_given_after_it(
    trainer: str, name: str, data: PeerData, read: Read
) -> None:
    """Trainers that apply no norm get what HF transformers has after it."""
    found = samples_of(read(trainer, "pre"))
    assert_close(
        torch.cat([sample.pop(name)[0] for sample in found]).float(),
        torch.cat(data.exact_post),
        NORMED_ROUNDING,
    )
    expected = [SAMPLE_OF[trainer](sample) for sample in stored(data, "pre")]
    assert differences(found, [{k: v for k, v in s.items() if k != name} for s in expected]) == []


def test_modelopt_is_told_of_states_before_the_norm(data: PeerData, read: Read) -> None:
    """Its loader gives on what each file says of the norm."""
    tree = read("modelopt", "pre")
    told = {"base_hidden_prenorm": torch.tensor(True)}
    expected = [SAMPLE_OF["modelopt"](sample) | told for sample in stored(data, "pre")]
    assert differences(samples_of(tree), expected) == []


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_draft_model_takes_the_vocabulary(trainer: str, data: PeerData, read: Read) -> None:
    """What is in the draft model's buffers are the tokens that are most often in the loss."""
    vocabulary = read(trainer, NATIVE[trainer])["vocabulary"]
    counts = Counter[int]()
    for sample in stored(data, "post"):
        counts.update(sample.input_ids[sample.loss_mask == 1].tolist())
    assert len(counts) > DRAFT_VOCABULARY  # else all would be chosen
    frequent = sorted(counts, key=lambda token: (-counts[token], token))[:DRAFT_VOCABULARY]
    d2t = torch.tensor(sorted(frequent)) - torch.arange(DRAFT_VOCABULARY)
    t2d = torch.tensor([token in frequent for token in range(VOCABULARY)])
    assert torch.equal(vocabulary["d2t"], d2t)
    # Those that have both directions hold both, and those that count for themselves agree.
    assert "t2d" not in vocabulary or torch.equal(vocabulary["t2d"], t2d)
    assert "own_d2t" not in vocabulary or torch.equal(vocabulary["own_d2t"], d2t)
    assert ("t2d" in vocabulary) == (trainer != "modelopt")
    if trainer == "specforge":
        assert vocabulary["counts"].tolist() == [counts[token] for token in range(VOCABULARY)]


def test_specforge_is_taught_what_the_model_says(data: PeerData, read: Read) -> None:
    """Its own target head, on the states that it read, picks the tokens that the model picks."""
    tree = read("specforge", "post")
    model = AutoModelForCausalLM.from_pretrained(data.model, dtype=torch.float32).eval()
    chosen = tree["teacher"]["target_token_ids"]
    for number, sample in enumerate(stored(data, "post")[:3]):
        with torch.no_grad():
            logits = model(sample.input_ids[None]).logits[0]
        length = len(sample.input_ids)
        lost = logits.max(dim=1).values - logits[torch.arange(length), chosen[number, :length]]
        # Two tokens may be as likely as each other but for rounding.
        assert float(lost.max()) < 0.05


@pytest.mark.parametrize("trainer", ["speculators", "modelopt"])
def test_a_draft_model_learns_from_a_batch(trainer: str, read: Read) -> None:
    """One step of its own training: a loss, and a gradient where the aux states go in."""
    draft = read(trainer, NATIVE[trainer])["draft"]
    assert 0 < float(draft["loss"]) < 100
    assert draft["fc_gradient"].isfinite().all()
    assert float(draft["fc_gradient"].abs().max()) > 0


def test_validation_samples_are_the_same_for_every_trainer(data: PeerData, read: Read) -> None:
    """Each trainer finds its two parts: disjoint, together all samples, each in order."""
    held_out: dict[str, list[list[int]]] = {}
    everything = [sample.input_ids.tolist() for sample in stored(data, "post")]
    for trainer in TRAINERS:
        tree = read(trainer, "split")
        train, val = (
            [sample["input_ids"].flatten().tolist() for sample in samples_of(tree, split)]
            for split in ("train", "val")
        )
        assert val
        assert sorted(train + val) == sorted(everything)
        assert train == [ids for ids in everything if ids in train]
        held_out[trainer] = val
    assert all(val == held_out["specforge"] for val in held_out.values())


@pytest.mark.parametrize("trainer", TRAINERS)
def test_damage_is_seen(trainer: str, data: PeerData, read: Read) -> None:
    """These tests would notice: with a file or two damaged, the same comparison fails."""
    expected = [SAMPLE_OF[trainer](sample) for sample in stored(data, NATIVE[trainer])]
    for damage in DAMAGES:
        try:
            assert differences(samples_of(read(trainer, damage)), expected), damage
        except PeerError:
            # Nothing is missing then, only something wrong, which loaders do not see.
            assert damage in {"missing", "cut"}


def place_of(trainer: str, exported: Path, number: int) -> Path:
    """The file of a sample."""
    if trainer == "speculators":
        return exported / "hidden_states" / f"hs_{number}.safetensors"
    return sorted(path for path in (exported / "train").rglob("data_*"))[number]


def cut(first: Path, _: Path) -> None:
    with first.open("r+b") as file:
        file.truncate(first.stat().st_size - 100)


def exchange(first: Path, second: Path) -> None:
    other = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(other)


def change_ids(first: Path, _: Path) -> None:
    """Every id is another, and nothing else."""
    if first.suffix == ".safetensors":
        tensors = load_file(first)
        save_file(tensors | {"token_ids": tensors["token_ids"] ^ 1}, first)
    else:
        content = torch.load(first)
        torch.save(content | {"input_ids": content["input_ids"] ^ 1}, first)


DAMAGES: dict[str, Callable[[Path, Path], None]] = {
    "missing": lambda first, _: first.unlink(),
    "cut": cut,
    "exchanged": exchange,
    "other ids": change_ids,
}


def assert_close(found: torch.Tensor, expected: torch.Tensor, error: float) -> None:
    """Each element within a relative error."""
    assert found.shape == expected.shape
    worst = ((found - expected).abs() / expected.abs()).nan_to_num(0).max()
    assert float(worst) <= error
