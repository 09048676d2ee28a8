"""Makes two packages importable that SGLang imports and a CPU server never uses.

* torchvision from PyPI is linked against CUDA. Beside a CPU build of torch its C++ operators do
  not load, and its Python part then fails on the operators for which it registers fake kernels.
  Declaring these operators first, without kernels, lets the import pass.
* triton: SGLang defines kernels at import time and launches none on a CPU. Where triton is not
  installed, a stand-in lets the definitions pass; launching one raises. A real triton wins.
"""

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final

#: Operators that torchvision's Python part expects to exist.
_TORCHVISION_OPS: Final = ("nms", "qnms")

_TRITON_CLASSES: Final = {"constexpr", "dtype", "tensor", "pointer_type", "block_type"}


def install() -> None:
    """Adds both finders; call before SGLang is imported. A second call does nothing."""
    if not any(isinstance(finder, _TorchvisionFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TorchvisionFinder())
        sys.meta_path.append(_TritonFinder())  # last, so that an installed triton is found first


class _TorchvisionFinder(MetaPathFinder):
    """Finds nothing; declares the operators when torchvision is about to be imported."""

    #: Declarations live as long as this object does.
    _library: Any = None
    _is_done = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        del path, target
        if name == "torchvision" and not self._is_done:
            self._is_done = True
            if not _loads_natively():
                self._declare()

    def _declare(self) -> None:
        import torch  # noqa: PLC0415  must not be imported before it is needed

        self._library = torch.library.Library(  # type: ignore[no-untyped-call]  # torch's own
            "torchvision", "FRAGMENT"
        )
        for operator in _TORCHVISION_OPS:
            self._library.define(
                f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )


def _loads_natively() -> bool:
    """Whether the installed torchvision's C++ operators load beside the installed torch."""
    spec = importlib.machinery.PathFinder.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return True
    import torch  # noqa: PLC0415  as above

    for library in Path(spec.origin).parent.glob("_C*.so"):
        try:
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]  # as above
        except OSError:
            return False
    return True


class _Kernel:
    """What ``@triton.jit`` and its like leave: it can be wrapped again, never launched."""

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        self.fn = function
        self.__name__ = getattr(function, "__name__", "kernel")
        self.__doc__ = getattr(function, "__doc__", None)

    def __getitem__(self, grid: object) -> Any:
        raise RuntimeError(f"triton is not installed: cannot launch {self.__name__}")

    __call__ = __getitem__


class _AnyClass:
    """Usable as a base class, an annotation, an isinstance argument or a value."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __init_subclass__(cls, **_: Any) -> None: ...


def _decorator(*args: Any, **options: Any) -> Any:
    """``@jit``, with and without arguments."""
    if len(args) == 1 and not options and callable(args[0]):
        return _Kernel(args[0])
    return lambda function: function if isinstance(function, _Kernel) else _Kernel(function)


class _TritonModule(ModuleType):
    """A module in which every name exists."""

    __version__ = "0.0.0"
    __path__: list[str] = []  # noqa: RUF012  a package, to the import system

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = self._top_level(name) if self.__name__ == "triton" else None
        if value is None:
            is_class = name[0].isupper() or name in _TRITON_CLASSES
            value = (
                type(name, (_AnyClass,), {"__module__": self.__name__}) if is_class else _Kernel()
            )
            value.__name__ = name
        setattr(self, name, value)
        return value

    def _top_level(self, name: str) -> Any:
        match name:
            case "jit" | "autotune" | "heuristics":
                return _decorator
            case "cdiv":
                return lambda a, b: -(a // -b)
            case "next_power_of_2":
                return lambda n: 1 << (n - 1).bit_length() if n > 0 else 1
            case "language" | "runtime" | "compiler" | "testing" | "tools" | "backends":
                return importlib.import_module(f"triton.{name}")
        return None


class _TritonFinder(MetaPathFinder, Loader):
    """Answers for triton and its submodules, except to torch."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if name == "triton":
            if _importer() == "torch":
                return None  # to torch, triton stays absent
            _let_torch_decide()
        elif not name.startswith("triton."):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _TritonModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run: the names come on demand."""


def _importer() -> str:
    """Top-level package of the code whose import statement is being served."""
    frame = sys._getframe(1)  # noqa: SLF001  the import system offers no other way to ask
    while frame is not None:
        name: str = frame.f_globals.get("__name__", "")
        if name != __name__ and not name.startswith("importlib"):
            return name.split(".", maxsplit=1)[0]
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""


def _let_torch_decide() -> None:
    """Torch caches whether triton is there; it must do so before the stand-in is."""
    import torch._inductor.runtime.triton_compat  # noqa: F401, PLC0415
    from torch.utils._triton import has_triton_package  # noqa: PLC0415

    has_triton_package()
