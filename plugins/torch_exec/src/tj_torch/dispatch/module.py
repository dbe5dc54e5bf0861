"""Jitted modules: wrappers that share the module's state, and run the program when called.

A jitted module is an instance of a subclass of the module's own class, and shares the module's
``__dict__``. So both have the same parameters, buffers, hooks, submodules and plain attributes, and
``state_dict`` has the same names.
"""

from __future__ import annotations

import copy
import inspect
import types
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tj_core.internal import callable_html

from tj_torch.dispatch.ahead import compile_for
from tj_torch.torch_private.composable import share_state

if TYPE_CHECKING:
    import torch
    from tj_core.extend import Jitted

__all__ = ["Dispatching", "JittedModule", "calling", "forward_of", "make_wrapper", "wrap_module"]

NO_MEMBERS: Mapping[str, Any] = types.MappingProxyType({})


class JittedModule:
    """Base class of all jitted modules, beside the module's own class; for `isinstance`."""

    __slots__ = ()
    __tj__: Jitted
    _tj_call: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Skip the wrapped class's hook, since the user defined no subclass."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled program, hooks included; compile first if no entry's guards hold."""
        return self._tj_call(*args, **kwargs)

    @property
    def __class__(self) -> type:
        """The class of the module, which a parametrization replaces."""
        module = _module_of(self)
        return type(self) if module is None else type(module)

    @__class__.setter
    def __class__(self, cls: type) -> None:
        module = _module_of(self)
        if module is None or issubclass(cls, JittedModule):
            _set_type(self, cls)
            return
        module.__class__ = cls
        _follow(self)

    @property
    def _torchdynamo_orig_callable(self) -> torch.nn.Module:
        """The module that ``torch.compiler.disable`` and ``torch.compile`` take instead."""
        module: torch.nn.Module = self.__tj__.fn
        return module

    @property
    def _torchdynamo_wrapper_id(self) -> int:
        """The id by which PyTorch knows that it is this object which stands for the other."""
        return id(self)

    def _repr_html_(self) -> str:
        """HTML for notebooks: counters, programs and traces."""
        return callable_html(self.__tj__)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A jitted copy of the module; compiled entries stay behind."""
        return self.__tj__.again(copy.deepcopy(self.__tj__.fn, memo))

    def __copy__(self) -> Any:
        return self.__tj__.again(copy.copy(self.__tj__.fn))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as the module and the arguments of `tj.jit`; compiled entries stay behind."""
        return _rebuild, (self.__tj__.fn, self.__tj__.arguments)


class _WithSlots(JittedModule):
    """Base with the slots of a jitted module, so that one may get another class, as modules do."""

    __slots__ = ("__dict__", "__tj__", "__weakref__", "_tj_call")


def _module_of(wrapper: JittedModule) -> Any:
    """The module that ``wrapper`` stands for; None for one inside of another jitted module."""
    module = wrapper.__tj__.fn
    return module if vars(module) is vars(wrapper) else None


def _follow(wrapper: JittedModule) -> None:
    """Let ``wrapper`` be of the class that its module has now."""
    module, cls = _module_of(wrapper), type(wrapper)
    # The class of the user's may derive from that of a jitted module.
    if module is not None and cls.__dict__.get("_tj_class", type(module)) is not type(module):
        _set_type(wrapper, _wrapper_type(type(module), cls.__dict__["_tj_members"]))


_set_type = object.__dict__["__class__"].__set__


def _rebuild(module: torch.nn.Module, arguments: dict[str, Any]) -> Any:
    import tj_core

    return tj_core.jit(module, **arguments)


class Dispatching(Protocol):
    """Interface of dispatchers: the state of a jitted program and its callable."""

    jitted: Jitted

    def take_call(self) -> Callable[..., Any]:
        """Hand over the callable for the user; called once."""
        ...


def calling(module: torch.nn.Module) -> Callable[..., Any]:
    """Function that Dynamo inlines for a call of the jitted ``module``."""

    def tj_root(*args: Any, **kwargs: Any) -> Any:
        return module(*args, **kwargs)

    return tj_root


def forward_of(module: torch.nn.Module) -> Callable[..., Any]:
    """Function that Dynamo inlines for a call of ``module`` without its hooks."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return module.forward(*args, **kwargs)

    return forward


def wrap_module(
    module: torch.nn.Module, dispatcher: Dispatching, members: Mapping[str, Any] = NO_MEMBERS
) -> Any:
    """Make the jitted ``module``; ``members`` override those of its class."""
    wrapper = make_wrapper(module, dispatcher.jitted, dispatcher.take_call(), members)
    dispatcher.jitted.original = _original(module, wrapper)
    return wrapper


def make_wrapper(
    module: torch.nn.Module, jitted: Jitted, call: Callable[..., Any], members: Mapping[str, Any]
) -> Any:
    """Make a jitted ``module`` whose calls ``call`` answers, unless ``members`` say otherwise."""
    wrapper: Any = object.__new__(
        _wrapper_type(type(module), members)
    )  # not cls.__new__, which may require arguments
    # `Module.__setattr__` looks for `_parameters`, which the wrapper does not have yet.
    object.__setattr__(wrapper, "__dict__", module.__dict__)
    object.__setattr__(wrapper, "__tj__", jitted)
    object.__setattr__(wrapper, "_tj_call", call)
    share_state(module, wrapper)
    return wrapper


def _wrapper_type(cls: type, members: Mapping[str, Any]) -> type:
    """Class of the jitted modules of class ``cls`` with ``members``; one for all of them.

    Python's own list of ``cls``'s subclasses, weak references, serves as the cache.
    """
    shared = _shared_slots(cls)
    # Python lets only one of the bases have slots.
    base: type = JittedModule if shared else _WithSlots
    slots = ("__tj__", "_tj_call") if shared else ()
    known: type
    for known in type.__subclasses__(cls):
        # A class of the user's may be among the subclasses; it has other bases.
        if known.__dict__.get("_tj_members") == members and known.__bases__ == (base, cls):
            return known
    body = {
        **members,
        **shared,
        "_tj_class": cls,
        "_tj_members": members,
        "__slots__": slots,
        "__doc__": cls.__doc__,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
    }
    if not hasattr(cls, "compile_for"):
        body["compile_for"] = compile_for
    metaclass: Any = type(cls)
    return metaclass(cls.__name__, (base, cls), body)  # type: ignore[no-any-return]


def _original(module: Any, wrapper: Any) -> Callable[[], Callable[..., Any]]:
    """Function that returns the unjitted ``__call__``, bound to ``wrapper`` while that is alive.

    ``wrapper`` takes the class of ``module``, if that has another one now.
    """
    reference = weakref.ref(wrapper)

    def original() -> Callable[..., Any]:
        live: Any = reference()
        if live is not None:
            _follow(live)
        parent: Any = module if live is None else super(JittedModule, live)
        call: Callable[..., Any] = parent.__call__
        return call

    return original


def _shared_slots(cls: type) -> dict[str, property]:
    """Properties that forward attributes in ``cls``'s slots to the wrapped module."""
    found: dict[str, property] = {}
    for name in dir(cls):
        slot = inspect.getattr_static(cls, name)
        if isinstance(slot, types.MemberDescriptorType):
            found[name] = _shared(slot)
    return found


def _shared(slot: Any) -> property:
    def read(self: Any) -> Any:
        return slot.__get__(self.__tj__.fn)

    def write(self: Any, value: Any) -> None:
        slot.__set__(self.__tj__.fn, value)

    def delete(self: Any) -> None:
        slot.__delete__(self.__tj__.fn)

    return property(read, write, delete)
