"""Options of ``torch.compile``, and their equivalents in `tj.jit`."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["equivalent", "is_torchs"]

_MODES: Mapping[str, str] = {
    "default": "it is tj.jit's own: leave it out",
    "reduce-overhead": "CUDA graphs are a plugin, in use once installed: pip install tj-cudagraph",
    "max-autotune": "tj-inductor compiles with Inductor's settings: "
    "torch._inductor.config.max_autotune = True",
    "max-autotune-no-cudagraphs": "tj-inductor compiles with Inductor's settings: "
    "torch._inductor.config.max_autotune = True",
}

_EQUIVALENTS: Mapping[str, str] = {
    "model": "the program is the first argument, without a name: tj.jit(f)",
    "backend": "who runs operations is said by executors=['inductor', '...'], or by plugins=; "
    "torch.compile(f, backend='tj') is tj below torch.compile",
    "mode": "modes are torch.compile's; plugins and their options say what is optimised",
    "options": "options are keywords, a plugin's are a dict: tj.jit(f, check=2, "
    "inductor={'minimum': 3})",
    "name": "a program is called as its function",
    "isolate_recompiles": "each tj.jit(f) has entries of its own",
    "guard_filter_fn": "all guards are kept; tj.guards(f) lists them",
    "shapes_spec": "dynamic= says which sizes are symbols, as do torch._dynamo.mark_dynamic and "
    "mark_static",
}
"""Names of torch.compile's options that `tj.jit` does not have, with what there is instead."""

_OF_PLUGINS = "options of a plugin are given as a dict: inductor={'minimum': 3}"


def is_torchs(key: str, value: object) -> bool:
    """Test for an option of ``torch.compile`` that `tj.jit` does not have."""
    return key in _EQUIVALENTS or (key == "disable" and isinstance(value, bool))


def equivalent(key: str, value: object) -> str:
    """The hint for the option ``key``, which `tj.jit` does not have."""
    if key == "mode" and isinstance(value, str) and value in _MODES:
        return f"mode={value!r}: {_MODES[value]}"
    if key == "backend" and value == "tj":
        return "tj.jit(f) is tj by itself; torch.compile(f, backend='tj') is tj below torch.compile"
    if key == "disable":
        return "disable= lists plugins that are not loaded; enable=False leaves programs uncompiled"
    return _EQUIVALENTS.get(key, _OF_PLUGINS)
