"""C++ kernels of many regions in one file: the compiler starts once, and reads its headers once.

Inductor compiles a file for each kernel. While kernels are collected, a `Waiting` stands for each;
in the end, one file has all of them, each in a namespace of its own. A call
of a `Waiting` before the end, from another thread, compiles its kernel alone. The compiler may run
beside the program; then the first call of a kernel waits for it.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tj_torch.extend import MissingNameError

from tj_inductor.adapter.features import is_lost
from tj_inductor.adapter.libraries import flags, library
from tj_inductor.adapter.names import ONE_FILE
from tj_inductor.texts import ENTRY

__all__ = ["Collected", "Waiting", "collected_kernel", "collecting", "one_file", "repeated"]

INCLUDE = re.compile(r'^\s*#include [<"].*[>"]\s*$', re.MULTILINE)


REPLACED = ("cpp_pybinding", "wait")
"""Functions replaced while kernels are collected: to compile one, and to wait for a module's."""


class Waiting:
    """A kernel to be compiled, at the latest by its first call."""

    __slots__ = ("argument_types", "compilation", "function", "repeated", "rows", "source")

    def __init__(
        self, argument_types: Sequence[str], source: str, *, repeated: bool = False
    ) -> None:
        self.argument_types = tuple(argument_types)
        self.source = source
        self.repeated = repeated and all(kind.endswith("*") for kind in argument_types)
        self.compilation: Compilation | None = None
        self.function: Callable[..., Any] | None = None
        self.rows: Callable[[list[Any], bytes], None] | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for kernels of which one is compiled."""
        return self.argument_types, self.source, self.repeated

    def __call__(self, *args: Any) -> Any:
        """Run the kernel."""
        if self.function is None and self.compilation is not None:
            self.compilation.wait()
        if self.function is None:
            self.function = _alone(self)
        return self.function(*args)

    def by_rows(self) -> Callable[[list[Any], bytes], None] | None:
        """The function that runs the kernel for each row of a table; None if it is compiled alone.

        A row has, for each argument, the index of its tensor in the list, and an offset in bytes:
        32-bit integers.
        """
        if self.function is None and self.compilation is not None:
            self.compilation.wait()
        return self.rows


@dataclass
class Collected:
    """The kernels that wait, and the modules of generated code that hold them.

    They are compiled ``together``, or each alone, from the texts that ``change`` makes of theirs.
    """

    together: bool = True
    change: Callable[[str], str] = str
    kernels: list[Waiting] = field(default_factory=list)
    scopes: list[dict[str, Any]] = field(default_factory=list)

    @staticmethod
    def supported() -> bool:
        """Test if this PyTorch has the functions that are replaced."""
        try:
            from tj_inductor.adapter.names import AsyncCompile, CppPythonBindingsCodeCache
        except MissingNameError:
            return False
        names = all(hasattr(AsyncCompile, name) for name in REPLACED)
        return names and hasattr(CppPythonBindingsCodeCache, "load_pybinding")

    def compile(self) -> None:
        """Compile the waiting kernels, and bind their functions in the modules that call them."""
        distinct: dict[tuple[Any, ...], Waiting] = {}
        for kernel in self.kernels:
            # The layers of a model mostly have the same kernels.
            distinct.setdefault(kernel.key, kernel)
        kernels = list(distinct.values())
        groups = [kernels] if kernels and self.together else [[kernel] for kernel in kernels]
        for group in groups if _has_file() else ():
            _compile(group)
        for kernel in kernels:
            kernel.function = kernel.function or _alone(kernel)
        for kernel in self.kernels:
            same = distinct[kernel.key]
            kernel.function, kernel.rows = same.function, same.rows
        for scope in self.scopes:
            waiting = {k: v for k, v in scope.items() if isinstance(v, Waiting)}
            scope.update({k: v.function for k, v in waiting.items()})


class Compilation:
    """A thread that compiles the kernels of ``collected``.

    The process does not end before: a compiler that is left alone writes half of a file, which the
    next process would find, and no lock on it.
    """

    def __init__(self, collected: Collected) -> None:
        self.collected = collected
        self.process = os.getpid()
        # Inductor's settings are variables of a context.
        run = functools.partial(contextvars.copy_context().run, self._compile)
        self.thread = threading.Thread(target=run, name="tj-inductor")
        for kernel in collected.kernels:
            kernel.compilation = self
        self.thread.start()

    def wait(self) -> None:
        """Wait for the end; kernels without a function have failed."""
        if os.getpid() == self.process:
            self.thread.join()
        else:  # a child of the process, which has no thread
            self._compile()

    def _compile(self) -> None:
        # A kernel that fails is compiled alone when it is called, and raises there.
        with contextlib.suppress(Exception):
            self.collected.compile()


def _has_file() -> bool:
    """Tell whether this PyTorch calls kernels from Python in the form that is counted on."""
    from tj_inductor.adapter.names import CppPythonBindingsCodeCache

    template = getattr(CppPythonBindingsCodeCache, "suffix_template", "")
    known = FUNCTION in template and MODULE in template
    return known and not is_lost(ONE_FILE) and hasattr(CppPythonBindingsCodeCache, "load_async")


def _template() -> str:
    from tj_inductor.adapter.names import CppPythonBindingsCodeCache

    found: str = CppPythonBindingsCodeCache.suffix_template
    return found


class _Here(threading.local):
    """The kernels that a thread collects, if any, and if they are to be run by rows."""

    collected: Collected | None = None
    repeated: bool = False


# Set in a block of one thread alone (`collecting`, `repeated`).
_here = _Here()


@contextlib.contextmanager
def collecting(
    *, together: bool = True, change: Callable[[str], str] = str, goes_on: bool = False
) -> Iterator[None]:
    """Collect the C++ kernels of this thread inside of the block, and compile them on exit.

    They are compiled in one file, or each in its own without ``together``. If the compiler
    ``goes_on`` after exit, kernels wait for it in their first call. The kernels of a
    nested block belong to the outer block.
    """
    if _here.collected is not None:
        yield
        return
    collected = _here.collected = Collected(together, change)
    try:
        with _replaced.held():
            yield
        if goes_on and collected.kernels:
            Compilation(collected)
        else:
            collected.compile()
    finally:
        _here.collected = None


@contextlib.contextmanager
def repeated() -> Iterator[None]:
    """Compile the kernels that are collected inside of the block for `Waiting.by_rows`, too."""
    _here.repeated = True
    try:
        yield
    finally:
        _here.repeated = False


def collected_kernel(argument_types: Sequence[str], source: str) -> Waiting:
    """A new kernel, added to the kernels of the block of `collecting`, if there is one."""
    if (collected := _here.collected) is None:
        return Waiting(argument_types, source)
    made = Waiting(argument_types, collected.change(source), repeated=_here.repeated)
    collected.kernels.append(made)
    return made


class _Replaced:
    """The methods of `REPLACED`, on the class and so for all threads, while any thread collects.

    A thread that does not compiles a graph of its own, as for torch.compile, and calls its kernels
    at once. No lock is held meanwhile: two threads that collect may wait for each other otherwise.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.originals: tuple[Callable[..., Any], ...] = ()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        from tj_inductor.adapter.names import AsyncCompile

        with self.lock:
            self.count += 1
            if self.count == 1:
                self.originals = tuple(getattr(AsyncCompile, name) for name in REPLACED)
                _replace(AsyncCompile, *_replacements(*self.originals))
        try:
            yield
        finally:
            with self.lock:
                self.count -= 1
                if not self.count:
                    _replace(AsyncCompile, *self.originals)


_replaced = _Replaced()


def _replacements(
    kernel: Callable[..., Any], wait: Callable[..., Any]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    def later(self: Any, argument_types: Sequence[str], source: str) -> Any:
        collected = _here.collected
        if collected is None:
            return kernel(self, argument_types, source)
        return collected_kernel(argument_types, source)

    def waited(self: Any, scope: dict[str, Any]) -> Any:
        # `scope` is the module of generated code; `AsyncCompile.wait` would put results of
        # futures in it.
        collected = _here.collected
        if collected is not None and any(isinstance(v, Waiting) for v in scope.values()):
            collected.scopes.append(scope)
        return wait(self, scope)

    return later, waited


def _replace(owner: Any, *functions: Any) -> None:
    for name, function in zip(REPLACED, functions, strict=True):
        setattr(owner, name, function)


def _alone(kernel: Waiting) -> Callable[..., Any]:
    from tj_inductor.adapter.names import CppPythonBindingsCodeCache

    made: Callable[..., Any] = CppPythonBindingsCodeCache.load_pybinding(
        list(kernel.argument_types), kernel.source, extra_flags=flags()
    )
    return made


def _compile(kernels: Sequence[Waiting]) -> None:
    module = library(one_file(kernels))
    for place, kernel in enumerate(kernels):
        kernel.function = getattr(module, f"kernel_{place}")
        kernel.rows = getattr(module, f"rows_{place}", None)


FUNCTION = "static PyObject* {entry_func}_py"
MODULE = "PyMODINIT_FUNC PyInit_{entry_func}"


def one_file(kernels: Sequence[Waiting]) -> str:
    """The text of one extension module with all of ``kernels``, called ``kernel_0`` and so on."""
    # An include inside of a namespace would declare the standard library in it.
    includes = dict.fromkeys(m.strip() for k in kernels for m in INCLUDE.findall(k.source))
    before, _, rest = _template().partition(FUNCTION)
    _, _, after = rest.partition(MODULE)
    prelude = before.replace("{extra_parse_arg}", "")
    parts = [
        *includes,
        *(_namespace(place, kernel) for place, kernel in enumerate(kernels)),
        _unescaped(prelude),
        *(_wrapper(place, kernel) for place, kernel in enumerate(kernels)),
        *(_rows(place, kernel) for place, kernel in enumerate(kernels) if kernel.repeated),
        _table(kernels),
        "PyMODINIT_FUNC PyInit_kernel" + _unescaped(after),
    ]
    return "\n".join(parts)


def _unescaped(template: str) -> str:
    return template.replace("{{", "{").replace("}}", "}")


def _namespace(place: int, kernel: Waiting) -> str:
    # Inductor declares it `extern "C"`: two of one name in one file do not compile.
    source, count = ENTRY.subn("static void kernel(", INCLUDE.sub("", kernel.source))
    if count != 1:
        raise ValueError(f"a kernel has {count} entries, not one")
    return f"namespace region_{place} {{\n{source}\n}}"


def _wrapper(place: int, kernel: Waiting) -> str:
    args = ", ".join(
        f"parse_arg<{kind.replace('const ', '')}>(args, {n})"
        for n, kind in enumerate(kernel.argument_types)
    )
    return f"""static PyObject* kernel_{place}_py({_convention().parameters}) {{
    try {{
        region_{place}::kernel({args});
        Py_RETURN_NONE;
    }} catch (std::exception const& e) {{
        PyErr_SetString(PyExc_RuntimeError, e.what());
        return nullptr;
    }}
}}"""


@dataclass(frozen=True, slots=True)
class Convention:
    """The form in which C functions get their arguments from Python; ``parse_arg`` reads it."""

    parameters: str
    flag: str
    pointer: str = "{}"


TUPLE = Convention("PyObject* self, PyObject* args", "METH_VARARGS")
ARRAY = Convention(
    "PyObject* self, PyObject* const* args, Py_ssize_t",
    "METH_FASTCALL",
    "reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>({}))",
)
"""The form that Inductor takes from PyTorch 2.15 on."""


def _convention() -> Convention:
    return ARRAY if ARRAY.flag in _template() else TUPLE


def _rows(place: int, kernel: Waiting) -> str:
    """The function `Waiting.by_rows`."""
    args = ", ".join(
        f"reinterpret_cast<{kind}>(at({n}))" for n, kind in enumerate(kernel.argument_types)
    )
    return f"""static PyObject* rows_{place}_py(PyObject* self, PyObject* args) {{
    PyObject *tensors, *table;
    if (!PyArg_ParseTuple(args, "O!S", &PyList_Type, &tensors, &table)) return nullptr;
    const int32_t* row = reinterpret_cast<const int32_t*>(PyBytes_AS_STRING(table));
    const int32_t* end = row + PyBytes_GET_SIZE(table) / sizeof(int32_t);
    try {{
        std::vector<char*> known(PyList_GET_SIZE(tensors));
        auto at = [&](int n) {{
            char*& pointer = known[row[2 * n]];
            if (!pointer) {{
                PyObject* tensor = PyList_GET_ITEM(tensors, row[2 * n]);
                pointer = static_cast<char*>(_torchinductor_pyobject_tensor_data_ptr(tensor));
            }}
            return pointer + row[2 * n + 1];
        }};
        for (; row < end; row += {2 * len(kernel.argument_types)}) region_{place}::kernel({args});
        Py_RETURN_NONE;
    }} catch (std::exception const& e) {{
        PyErr_SetString(PyExc_RuntimeError, e.what());
        return nullptr;
    }}
}}"""


def _table(kernels: Sequence[Waiting]) -> str:
    how = _convention()
    names = [f"kernel_{n}" for n in range(len(kernels))]
    rows = [f'{{"{n}", {how.pointer.format(f"{n}_py")}, {how.flag}, ""}}' for n in names]
    names = [f"rows_{n}" for n, kernel in enumerate(kernels) if kernel.repeated]
    rows += [f'{{"{n}", {n}_py, METH_VARARGS, ""}}' for n in names]
    module = '{PyModuleDef_HEAD_INIT, "kernel", NULL, -1, py_methods}'
    return (
        f"static PyMethodDef py_methods[] = {{{', '.join(rows)}, {{NULL, NULL, 0, NULL}}}};\n"
        f"static struct PyModuleDef py_module = {module};"
    )
