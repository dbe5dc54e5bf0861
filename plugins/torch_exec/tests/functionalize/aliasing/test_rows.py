"""Check that each row of the taxonomy of aliases and mutation has a case, and vice versa.

The rows are those of the project's notes on aliasing: I for one argument's mutation, O for kinds
of outputs, D and S for arguments that are one object or share storage, T for the groups of
PyTorch's own catalogue of tests (test_aotdispatch.py) that are about programs, not about parts of
AOTAutograd.
"""

from __future__ import annotations

from pathlib import Path

from tj_conformance.programs.cases import modules_in

ROWS = {
    "I1": "visible write to what needs a gradient",
    "I2": "write to what needs none",
    "I3": "write to a leaf that needs a gradient: an error",
    "I4": "write to a leaf under no_grad",
    "I5": "write through detach()",
    "I6": "write through .data: the version stays",
    "I7": "metadata in place",
    "I8": "metadata in place, then a write",
    "I9": "metadata in place that cancels out: still two events",
    "I10": "a write makes an argument need a gradient",
    "I11": "set_",
    "I12": "set_, then a write to the other alias",
    "I13": "set_ there and back",
    "I14": "resize_ to less",
    "I15": "resize_ to more",
    "I16": "storage resized",
    "I17": "requires_grad_ on an argument",
    "I18": "detach_ on an argument",
    "I19": "a view written under no_grad",
    "I20": "an argument that is not contiguous, or a view of something outside",
    "I21": "aliases of an argument that the caller keeps",
    "I22": "None, numbers and trees among the arguments",
    "I23": "an argument written in backward",
    "I24": "an argument written in forward and in backward",
    "I25": "a gradient written in backward",
    "I26": "a buffer written: statistics of batch norm",
    "O:non_alias": "a value",
    "O:non_alias, other values": "values, None, numbers, trees",
    "O:is_input": "an argument itself",
    "O:alias_of_input": "a view of an argument",
    "O:alias_of_input, detached": "a detached view of an argument",
    "O:alias_of_input, requires_grad_": "a view that was made to need a gradient",
    "O:alias_of_input, dtype": "a view of another type",
    "O:alias of mutated input": "a view of an argument that was written",
    "O:alias of input with metadata mutation": "a view of an argument changed in place",
    "O:unsafe_view_alias": "one view of a value",
    "O:alias_of_intermediate_save_as_output": "two views of a value",
    "O:alias_of_intermediate": "views of several values",
    "O:alias_of_intermediate_base_is_user_output": "a value and its views",
    "O:custom_function_view": "what an autograd.Function returns of its argument",
    "O:multi-output views": "chunks",
    "O:same tensor twice": "one value in two places",
    "O:no_grad view of grad intermediate": "a view made under no_grad",
    "O:aliasing outputs, no grad": "views without gradients",
    "O:in-place view": "a value whose metadata changed in place",
    "O:view, in-place view, view": "a view, a change in place, another view",
    "O:expanded output": "an expanded value",
    "D1": "one tensor twice, read",
    "D2": "one tensor twice, written",
    "D3": "one tensor twice, metadata in place",
    "D4": "one tensor twice, returned",
    "S1": "views of one base, one written",
    "S2": "the base is an argument",
    "S3": "no common base: shared storage only",
    "S4": "data of one, metadata of the other",
    "S5": "one storage, no overlap",
    "S6": "only metadata in place, on aliases",
    "S7": "aliases, nothing written",
    "S8": "an argument returned that shares storage with a written one",
    "S9": "several groups among other arguments",
    "S10": "compiled apart, called together, and back",
    "T:input data mutation": "",
    "T:metadata mutation": "",
    "T:set_ and resize_": "",
    "T:no_grad": "",
    "T:outputs of inputs": "",
    "T:outputs of intermediates": "",
    "T:synthetic base": "",
    "T:dedupe": "",
    "T:mutation in backward": "",
    "T:random": "",
    "T:autograd boundary": "",
}


def covered() -> dict[str, list[str]]:
    """Tests of each row: cases of the tables, and functions by name."""
    found: dict[str, list[str]] = {}
    for module in modules_in(Path(__file__).parent, but=[Path(__file__).name]):
        for case in module.case.cases if hasattr(module, "case") else ():
            for row in case.rows:
                found.setdefault(row, []).append(case.name)
        for name in vars(module):
            if name.startswith("test_s10_"):
                found.setdefault("S10", []).append(name)
    return found


def test_every_row_has_a_case() -> None:
    assert sorted(ROWS.keys() - covered().keys()) == []


def test_every_case_has_a_known_row() -> None:
    assert sorted(covered().keys() - ROWS.keys()) == []
