"""Nothing that comes from outside is executed: the sources hold no way to do so.

Pickles run code when they are read; so do ``torch.load`` of whole objects, code in a model's
folder, and text that is evaluated or given to a shell.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from statetap_contract import celery_settings

#: The sources of what is installed. Tests and benchmarks read only what they wrote.
PACKAGES: Final = ("contract", "store", "producer", "worker", "sglang_patch", "infra")

MODULES: Final = frozenset(
    {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal"}
    | {"shelve", "code", "codeop", "yaml"}
)

CALLS: Final = frozenset({"eval", "exec", "compile", "__import__"})

METHODS: Final = frozenset(
    {"torch.load", "torch.hub.load", "os.system", "os.popen", "pandas.read_pickle"}
    | {"pd.read_pickle", "np.load", "numpy.load"}
)

OPTIONS: Final = {
    "allow_pickle": True,
    "shell": True,
    "trust_remote_code": True,
    "weights_only": False,
}


def risks_in(tree: ast.AST) -> Iterator[str]:
    """What could execute something, one by one."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if is_risky(alias.name))
            case ast.ImportFrom(module=str(module), names=names):
                if is_risky(module):
                    yield module
                yield from (
                    name for alias in names if (name := f"{module}.{alias.name}") in METHODS
                )
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                yield name
            case ast.Attribute() if (name := ast.unparse(node)) in METHODS:
                yield name
            case ast.keyword(arg=str(option), value=value) if option in OPTIONS:
                # What is not said in so many words could be anything.
                if not isinstance(value, ast.Constant) or value.value is OPTIONS[option]:
                    yield option


def is_risky(module: str) -> bool:
    return module.partition(".")[0] in MODULES


@pytest.mark.parametrize(
    ("code", "risk"),
    [
        ("import pickle", "pickle"),
        ("import os, dill.detect", "dill.detect"),
        ("from cloudpickle import loads", "cloudpickle"),
        ("from torch import load", "torch.load"),
        ("import torch\ntorch.load(path)", "torch.load"),
        ("f = torch.load", "torch.load"),
        ("np.load(path)", "np.load"),
        ("eval(text)", "eval"),
        ("exec(text)", "exec"),
        ("run(line, shell=True)", "shell"),
        ("read(path, allow_pickle=flag)", "allow_pickle"),
        ("M.from_pretrained(folder, trust_remote_code=True)", "trust_remote_code"),
        ("read(path, weights_only=False)", "weights_only"),
        ("def f():\n  if x:\n    import marshal", "marshal"),
    ],
)
def test_a_risk_is_found(code: str, risk: str) -> None:
    """Wherever it stands."""
    assert list(risks_in(ast.parse(code))) == [risk]


@pytest.mark.parametrize(
    "code",
    [
        "model.eval()",
        "re.compile(text)",
        "json.loads(text)",
        "shards.load(path)",
        "M.from_pretrained(folder, trust_remote_code=False)",
        "read(path, weights_only=True)",
        "run(line, shell=False)",
        "from torch import Tensor",
    ],
)
def test_what_only_looks_like_one_is_none(code: str) -> None:
    """Else nobody would heed it."""
    assert list(risks_in(ast.parse(code))) == []


def test_the_sources_hold_none(repository: Path) -> None:
    """Of all packages."""
    files = [path for package in PACKAGES for path in (repository / package).rglob("*.py")]
    assert len(files) > 200
    found = {
        str(path.relative_to(repository)): risks
        for path in files
        if (risks := list(risks_in(ast.parse(path.read_text()))))
    }
    assert found == {}


def test_celery_takes_json_alone() -> None:
    """Which of its settings decides, whatever a message says of itself."""
    settings = celery_settings("redis://127.0.0.1:1/0")
    assert settings["accept_content"] == ["json"]
    assert settings["task_serializer"] == "json"
