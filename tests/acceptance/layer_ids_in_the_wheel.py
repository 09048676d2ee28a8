"""Asks every model class of the installed SGLang which layers it would capture.

It runs in the server's environment, where there is no pytest; ``test_layer_ids.py`` starts it and
reads its report, one JSON object: architecture -> what is wrong, and what was refused.

The classes' own hooks are called on objects that never ran ``__init__``: they have no weights, only
the modules that the hooks reach for, of the classes that the real models put there.
"""

import ast
import functools
import inspect
import itertools
import json
import random
import textwrap
from collections.abc import Iterator
from types import FunctionType, SimpleNamespace
from typing import Any, Final

from statetap_patch.cpu.import_hooks import install

install()  # before anything imports SGLang

import torch  # noqa: E402
from sglang.srt.models.registry import import_model_classes  # noqa: E402
from statetap_contract import UsageError  # noqa: E402
from statetap_patch.layers import (  # noqa: E402
    CONVENTIONS,
    UNCAPTURABLE,
    captured_boundaries,
    raw_layer_ids,
)

HOOK: Final = "set_eagle3_layers_to_capture"

#: Its models come from a package that is not in the wheel, and it stands in no model's config.
NOT_IN_THE_WHEEL: Final = {"MindSporeForCausalLM"}

#: Attributes under which hooks find their language model.
CHILDREN: Final = ("model", "language_model")

NUM_LAYERS_OF_ALL_CHOICES: Final = 8
NUM_LAYERS_OF_SOME_CHOICES: Final = (5, 36, 61)


class UnknownModule(torch.nn.Module):
    """Stands where a source does not show what is put there; nothing may be delegated to it."""

    def __getattr__(self, name: str) -> Any:
        if name == HOOK:
            raise LookupError("delegates to a module whose class its source does not show")
        return super().__getattr__(name)


def unloaded(cls: type[torch.nn.Module], num_layers: int) -> torch.nn.Module:
    """A model as its hook sees it: config, pipeline rank, and the modules it delegates to."""
    model: torch.nn.Module = cls.__new__(cls)
    torch.nn.Module.__init__(model)
    sizes = SimpleNamespace(num_hidden_layers=num_layers)
    model.config = SimpleNamespace(num_hidden_layers=num_layers, text_config=sizes)  # type: ignore[assignment]  # no module
    model.pp_group = SimpleNamespace(is_last_rank=True)  # type: ignore[assignment]  # likewise
    for name in CHILDREN:
        child = child_class(cls, name)  # type: ignore[arg-type]  # mypy: no class can be hashed
        if child is not None:
            setattr(model, name, unloaded(child, num_layers))
    if not any(isinstance(child, torch.nn.Module) for child in model.children()):
        model.layers = torch.nn.ModuleList(torch.nn.Identity() for _ in range(num_layers))
    return model


@functools.cache
def child_class(cls: type, name: str) -> type[torch.nn.Module] | None:
    """The class of ``self.<name>``, as the nearest ``__init__`` in the inheritance assigns it."""
    for constructor in constructors(cls):
        for called in assigned(constructor, name):
            found = called_class(called, cls, constructor)
            return found if is_module_class(found) else UnknownModule
    return None


def constructors(cls: type) -> list[FunctionType]:
    """Every ``__init__`` of the model's own classes, nearest first."""
    own = itertools.takewhile(lambda ancestor: ancestor is not torch.nn.Module, cls.__mro__)
    found = (vars(ancestor).get("__init__") for ancestor in own)
    return [constructor for constructor in found if isinstance(constructor, FunctionType)]


def assigned(constructor: FunctionType, name: str) -> Iterator[ast.expr]:
    """What it calls to make ``self.<name>``."""
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(constructor)))):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and f"self.{name}" in map(ast.unparse, node.targets)
        ):
            yield node.value.func


def called_class(called: ast.expr, cls: type, constructor: FunctionType) -> Any:
    """The class behind an expression: a class attribute, a parameter's default, a global name."""
    match called:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return getattr(cls, name, None)
        case ast.Name(id=name):
            for nearer in constructors(cls):
                parameter = inspect.signature(nearer).parameters.get(name)
                if parameter is not None:
                    return parameter.default
            # A model imported inside of the constructor is a registered one.
            return constructor.__globals__.get(name) or registered().get(name)
    return None


def is_module_class(found: Any) -> bool:
    return inspect.isclass(found) and issubclass(found, torch.nn.Module)


@functools.cache
def registered() -> dict[str, type[torch.nn.Module]]:
    """Model classes by architecture, as SGLang itself collects them."""
    classes: dict[str, type[torch.nn.Module]] = import_model_classes("sglang.srt.models")
    return classes


def choices(num_layers: int) -> Iterator[tuple[int, ...]]:
    """Sets of boundaries: all there are of a small model, some of a large one."""
    possible = range(1, num_layers)
    if num_layers == NUM_LAYERS_OF_ALL_CHOICES:
        for size in possible:
            yield from itertools.combinations(possible, size)
        return
    generator = random.Random(num_layers)
    yield from ((boundary,) for boundary in possible)
    for _ in range(30):
        yield tuple(sorted(generator.sample(possible, 3)))
    yield (1, 2, num_layers - 1)
    yield tuple(possible)


def captured(cls: type[torch.nn.Module], ids: tuple[int, ...], num_layers: int) -> tuple[int, ...]:
    model = unloaded(cls, num_layers)
    getattr(model, HOOK)(list(ids))
    return captured_boundaries(model)


def is_accepted(ids: tuple[int, ...], num_layers: int) -> bool:
    """What SGLang demands of the flag before a model sees it."""
    return len(set(ids)) == len(ids) and all(0 <= k < num_layers for k in ids)


def faults(architecture: str, cls: type[torch.nn.Module]) -> tuple[list[str], set[tuple[int, ...]]]:
    """What is wrong with an architecture's convention, and the choices it refuses."""
    wrong: list[str] = []
    refused: set[tuple[int, ...]] = set()
    for num_layers in (NUM_LAYERS_OF_ALL_CHOICES, *NUM_LAYERS_OF_SOME_CHOICES):
        for asked in choices(num_layers):
            try:
                ids = raw_layer_ids(architecture, asked, num_layers)
            except UsageError:
                refused.add(asked)
                continue
            got = captured(cls, ids, num_layers)
            if got != asked or not is_accepted(ids, num_layers):
                wrong.append(f"{num_layers} layers: asked {asked}, flag {ids}, captured {got}")
    for asked in refused:
        wrong += needlessly_refused(cls, asked)
    return wrong, refused


def needlessly_refused(cls: type[torch.nn.Module], asked: tuple[int, ...]) -> Iterator[str]:
    num_layers = NUM_LAYERS_OF_ALL_CHOICES
    for ids in itertools.permutations(range(num_layers), len(asked)):
        if captured(cls, ids, num_layers) == asked:
            yield f"{num_layers} layers: refused {asked}, which flag {ids} captures"


def make_last_rank(cls: type[torch.nn.Module]) -> None:
    """Some hooks ask for the pipeline rank in their module's ``get_parallel``, not on the model."""
    hook = inspect.getattr_static(cls, HOOK)
    if "get_parallel" in hook.__globals__:
        last = SimpleNamespace(pp_group=SimpleNamespace(is_last_rank=True))
        hook.__globals__["get_parallel"] = lambda: last


def report() -> dict[str, Any]:
    classes = {
        architecture: cls
        for architecture, cls in registered().items()
        if hasattr(cls, HOOK) and architecture not in NOT_IN_THE_WHEEL
    }
    result: dict[str, Any] = {
        architecture: {"wrong": ["is in the table and not in SGLang"], "refused": []}
        for architecture in (set(CONVENTIONS) | UNCAPTURABLE) - set(classes)
    }
    for architecture, cls in sorted(classes.items()):
        if architecture in UNCAPTURABLE:
            continue
        make_last_rank(cls)
        try:
            wrong, refused = faults(architecture, cls)
        except Exception as error:  # noqa: BLE001  whatever a new model file does, it has a name
            wrong, refused = [f"{type(error).__name__}: {error}"], set()
        result[architecture] = {"wrong": wrong[:5], "refused": sorted(refused)}
    return result


if __name__ == "__main__":
    print(json.dumps(report()))  # noqa: T201  the test reads it
