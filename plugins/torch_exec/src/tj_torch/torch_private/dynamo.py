"""Names of TorchDynamo, found where this PyTorch has them when they are first imported from here.

``from tj_torch.torch_private.dynamo import TensorVariable`` inside a function imports Dynamo, which
takes a second; a name that this PyTorch lacks raises `MissingNameError`.
"""

from __future__ import annotations

from tj_torch.torch_private import lookup
from tj_torch.torch_private.lookup import Name, finder, names_in

__all__ = ["NAMES", "forget"]

_USES: dict[str, dict[str, tuple[str, ...]]] = {
    "torch": {
        "_assert": ("know assertions on tensors", "errors of data"),
        "_assert_async": ("know assertions that Dynamo makes", "errors of data"),
        "_foreach_lerp_": ("have it recorded as it is", "calls as they are"),
    },
    "torch._C._dynamo.eval_frame": {
        "_debug_get_cache_entry_list": ("see the guards of a fragment", "graph breaks"),
        "set_code_exec_strategy": ("run frames of tj's own code as they are",),
        "set_eval_frame": ("take PyTorch's hook off while a program is captured",),
    },
    "torch._C._dynamo.guards": {
        "GlobalStateGuard": ("guard modes of the whole process",),
        "TensorGuards": ("guard sizes, types and strides of tensors",),
    },
    "torch._C": {
        "_group_tensors_by_device_and_dtype": ("group tensors by type", "steps of optimizers"),
    },
    "torch._decomp": {
        "decompositions": ("replace the formula of an LSTM's layer", "states of an LSTM"),
    },
    "torch._guards": {
        "CompileContext": ("tell the guards of a fragment", "graph breaks"),
        "TracingContext": ("have guards collected",),
    },
    "torch.nn.modules.activation": {
        "_is_make_fx_tracing": (
            "tell modules for attention that nothing is traced",
            "fast paths of attention",
        ),
    },
    "torch._dynamo.bytecode_transformation": {
        "create_call_method": ("write the end of a program", "growing lists"),
        "create_instruction": ("write the end of a program", "growing lists"),
    },
    "torch._dynamo": {
        "config.disable": ("heed the setting by which nothing is compiled", "stances"),
        "convert_frame": ("capture a whole program, one at a time",),
        "exc": ("break a graph, and know why Dynamo broke one",),
        "guards": ("replace how guards are built",),
        "output_graph": ("import less for the stacks of calls",),
        "symbolic_convert._import_module": ("forget which modules were found",
                                            "globals of functions"),
        "symbolic_convert": (
            "replace how instructions run",
            "errors of data",
            "globals of functions",
            "undecided numbers",
        ),
        "types": ("answer PyTorch's hook",),
        "utils": ("see the calls that a graph gets", "errors of data", "sizes that are mapped",
                  "casts of other threads", "undecided numbers", "numbers of globals",
                  "writes before handlers", "numbers in containers", "numbers of NumPy"),
    },
    "torch._dynamo.decorators": {"mark_dynamic": ("mark sizes of exported programs",)},
    "torch._dynamo.eval_frame": {
        "skip_code": ("leave functions to Python",),
        "_stance": ("see which stance is set", "stances"),
    },
    "torch._dynamo.guards": {
        "CheckFunctionManager": ("have the guards of a program checked",),
        "GuardBuilder": ("guard numbers by their signs", "signs of zero", "capture",
                         "hooks of modules", "classes of tensors"),
        "GuardBuilder.EMPTY_NN_MODULE_HOOKS_DICT": ("guard that a module has no hooks",
                                                    "hooks of modules"),
        "GuardManagerType": ("make a guard of a module's dict", "hooks of modules"),
        "get_verbose_code_parts": ("say of a guard where it comes from", "identity",
                                   "answers of classes", "hidden builtins",
                                   "orders between calls", "imports", "hooks of modules",
                                   "classes of tensors"),
        "install_guard": ("guard who is who", "identity", "answers of classes",
                          "hidden builtins", "keys of objects", "orders between calls",
                          "imports", "hidden members", "unguarded reads",
                          "regions captured once"),
    },
    "torch._dynamo.output_graph": {
        "OutputGraph": ("see what a graph gets, and what leaves it", "errors of data",
                        "iterators that leave", "identity", "growing lists",
                        "gradients in programs"),
    },
    "torch._dynamo.pgo": {
        "FrameStateSizeEntry": ("tell numbers that differ between calls", "numbers of globals"),
        "auto_dynamic": ("tell numbers that differ between calls", "numbers of globals"),
        "process_automatic_dynamic": ("tell numbers that differ between calls",
                                      "numbers of globals"),
    },
    "torch._dynamo.side_effects": {
        "SideEffects": (
            "see which objects a program makes and changes",
            "exceptions",
            "remembered results",
            "lists and sets",
            "ends of objects",
            "growing lists",
            "regions captured once",
        ),
    },
    "torch._dynamo.source": {
        "LocalSource": ("know an argument", "numbers of NumPy"),
        "AttrSource": ("guard constants of classes", "members of classes", "unguarded reads",
                       "numbers of NumPy"),
        "ConstDictKeySource": ("know a key of a dict that was there", "identity"),
        "NonSerializableSetGetItemSource": ("know an item of a set that was there", "identity"),
        "DictGetItemSource": ("guard a global by its dict", "globals of functions"),
        "GlobalSource": ("know a global by its module", "globals of functions", "imports",
                         "remembered results"),
        "CallFunctionNoArgsSource": ("guard what a cache has", "remembered results"),
        "GlobalStateSource": ("guard the level of forward-mode gradients",),
        "TypeSource": ("know what is read from a class", "regions captured once"),
        "is_from_source": ("know the guards of a region", "regions captured once"),
        "is_from_skip_guard_source": ("know what nothing guards", "identity",
                                      "globals of functions"),
    },
    "torch._dynamo.symbolic_convert": {
        "InstructionTranslator": ("know where in the program Dynamo is, and import less",),
        "InstructionTranslatorBase": ("look at each function that is captured",),
    },
    "torch._dynamo.trace_rules": {
        "FORCE_SKIP_FILES": ("leave tj's own files to Python",),
        "SKIP_DIRS": ("leave generated programs to Python",),
        "_allowed_callable_ids": ("record calls of tj's functions",),
        "_recompile_re": ("leave generated programs to Python",),
        "get_torch_obj_rule_map": ("capture the checks of distributions", "distributions"),
    },
    "torch._dynamo.types": {
        "FrameAction": ("answer PyTorch's hook: run as it is",),
        "FrameExecStrategy": ("answer PyTorch's hook, for frames that are called, too",),
    },
    "torch._dynamo.utils": {
        "graph_break_reasons": ("say why a fragment begins where it does", "graph breaks"),
        "dynamo_timed": ("have Dynamo's clocks run, which it asks for",),
        "get_metrics_context": ("have Dynamo's counters there, which it asks for",),
    },
    "torch._dynamo.variables": {
        "FrozensetVariable": ("know a frozenset", "orders of sets"),
        "SetVariable": ("know a set, and what becomes of it", "orders of sets"),
        "base": ("see special methods that a class gets", "answers of classes"),
        "builder": ("replace guards of one object that is two arguments", "identity",
                    "returned objects", "numbers of globals"),
        "builtin": ("replace how builtin functions are called",),
        "ctx_manager": ("tell PyTorch's modes from a program's contexts", "errors of data"),
        "dicts": ("replace how keys are looked up", "missing keys", "order of keys", "identity",
                  "dicts of objects", "keys of objects"),
        "functions": ("replace how arguments are bound to parameters", "keywords", "own methods",
                      "operators of symbols", "classes made in programs", "unguarded reads"),
        "lists": ("replace how items are sought", "numbers in containers"),
        "misc": ("replace draws and context variables", "random numbers of Python",
                 "context variables"),
        "nn_module": ("replace how modules are called, and read", "lazy modules", "keywords",
                      "hidden members", "equal modules"),
        "user_defined": ("replace how objects of a program's classes are read and made",),
    },
    "torch._dynamo.variables.base": {
        "AttributeMutationNew": (
            "know an object that the program makes",
            "dicts of objects",
            "errors of data",
            "attributes that refuse",
        ),
        "ValueMutationNew": ("know a container that the program makes", "errors of data",
                             "iterators that leave"),
        "VariableTracker": ("have the text of any value", "exceptions", "own methods",
                            "growing lists", "orders of sets", "constant tensors"),
    },
    "torch._dynamo.variables.builder": {
        "SourcelessBuilder": ("have computed values as variables", "numbers of NumPy"),
        "VariableBuilder": (
            "replace how values of a program are wrapped",
            "bounds of deques",
            "classes of tensors",
            "distributions",
            "growing lists",
            "lists and sets",
            "orders between calls",
            "remembered results",
            "signs of zero",
            "steps of optimizers",
            "numbers of NumPy",
            "types of NumPy",
            "unguarded reads",
        ),
    },
    "torch._dynamo.variables.builtin": {
        "BuiltinVariable": ("call builtin functions, and replace calls of them",),
    },
    "torch._dynamo.variables.constant": {"ConstantVariable": ("have constants",)},
    "torch._dynamo.variables.ctx_manager": {
        "ContextWrappingVariable": (
            "know PyTorch's modes",
            "errors of data",
            "contexts entered by hand",
        ),
        "GradModeVariable": ("know gradients that are switched off", "contexts entered by hand",
                             "gradients of collectives", "refused arguments"),
    },
    "torch._dynamo.variables.dicts": {
        "ConstDictVariable": ("replace look-ups in dicts", "missing keys", "order of keys",
                              "dicts of objects", "orders between calls", "remembered results"),
    },
    "torch._dynamo.variables.functions": {
        "CollectiveFunctionRewriteVariable": (
            "capture collectives that write without gradients",
            "gradients of collectives",
        ),
        "LocalGeneratorObjectVariable": ("know a generator", "iterators that leave"),
        "PolyfilledFunctionVariable": ("know a function of sys", "unguarded reads"),
        "SkipFunctionVariable": ("pass over graph breaks", "steps of optimizers"),
        "UserFunctionVariable": ("capture a function that is not to be", "steps of optimizers",
                                 "closures of methods", "remembered results",
                                 "distributions", "checked functions"),
        "UserMethodVariable": ("know a bound method", "identity", "checked functions"),
        "WrapperUserFunctionVariable": ("know a function under lru_cache", "remembered results"),
    },
    "torch._dynamo.variables.higher_order_ops": {
        "AutogradFunctionApplyVariable": ("call a Function", "autograd.Function"),
        "TorchHigherOrderOperatorVariable": ("call a region", "equal modules"),
    },
    "torch._dynamo.variables.lists": {
        "ListVariable": ("have lists", "steps of optimizers", "orders between calls",
                         "growing lists", "text of symbols", "orders of sets"),
        "BaseListVariable": ("replace methods of lists and tuples", "tensors in containers",
                             "text of symbols", "operators of symbols", "autograd.Function",
                             "bounds of deques", "sizes that are mapped", "growing lists",
                             "numbers in containers", "orders between calls", "orders of sets",
                             "remembered results"),
        "DequeVariable": ("replace methods of deques", "bounds of deques", "growing lists"),
        "ListIteratorVariable": ("know an iterator", "iterators that leave"),
        "RangeVariable": ("have ranges", "unguarded reads", "unpacked ranges",
                          "tensors in containers"),
        "SizeVariable": ("know a torch.Size", "sizes that are mapped", "delayed texts",
                         "text of symbols"),
        "SliceVariable": ("have slices", "undecided numbers"),
        "TupleIteratorVariable": ("know an iterator", "iterators that leave"),
        "TupleVariable": ("have tuples", "sizes that are mapped", "text of symbols", "exceptions",
                          "autograd.Function", "operators of symbols", "iterators that leave",
                          "unpacked ranges", "delayed texts", "remembered results"),
    },
    "torch._dynamo.variables.misc": {
        "AutogradFunctionContextVariable": ("know a Function's ctx", "autograd.Function"),
        "AutogradFunctionVariable": ("know a Function", "autograd.Function"),
        "CellVariable": ("know a cell of a closure", "identity"),
        "ExceptionVariable": ("replace the texts of exceptions", "exceptions",
                              "delayed texts"),
        "GetAttrVariable": ("know a method that is called by hand", "contexts entered by hand"),
        "NumpyVariable": ("know a function of NumPy", "numbers of NumPy"),
        "NewGlobalVariable": ("know a global that is written", "writes before handlers"),
        "RandomVariable": ("know a random.Random", "random numbers of Python"),
        "StringFormatVariable": ("know a text that is formatted later", "delayed texts"),
        "SuperVariable": (
            "see what super() finds",
            "members of classes",
            "attributes of classes",
        ),
    },
    "torch._dynamo.variables.optimizer": {
        "OptimizerVariable": ("have steps computed as they are", "steps of optimizers"),
    },
    "torch._dynamo.variables.tensor": {
        "NumpyNdarrayVariable": ("know an array or a scalar of NumPy", "types of NumPy"),
        "SymNodeVariable": ("know a size that is a symbol", "text of symbols",
                            "operators of symbols", "greatest tensors", "steps of optimizers",
                            "refused arguments", "undecided numbers", "delayed texts",
                            "numbers in containers", "remembered results"),
        "TensorVariable": ("replace attributes and methods of tensors",),
        "UntypedStorageVariable": ("know the memory of a tensor", "attributes that fakes lack"),
    },
    "torch._dynamo.variables.torch": {
        "TorchInGraphFunctionVariable._get_handlers": ("have calls recorded as they are",
                                                       "calls as they are", "errors of data",
                                                       "steps of optimizers",
                                                       "fast paths of attention"),
        "TorchInGraphFunctionVariable": ("have calls recorded as they are", "calls as they are",
                                         "errors of data", "steps of optimizers",
                                         "own methods", "operators of symbols",
                                         "methods as values", "gradients in programs",
                                         "numbers of NumPy",
                                         "strided results", "fast paths of attention"),
        "tracing_state_functions": ("say that nothing is traced", "fast paths of attention"),
    },
    "torch._dynamo.variables.torch_function": {
        "TensorWithTFOverrideVariable": ("know a subclass of Tensor", "overridden operations",
                                         "classes of tensors"),
    },
    "torch._dynamo.variables.user_defined": {
        "UserDefinedObjectVariable": ("know an object of a program's class", "computed attributes",
                                      "identity", "members of enums", "own methods",
                                      "remembered results"),
        "UserDefinedSetVariable": ("know a class derived from set",
                                   "classes derived from containers"),
    },
    "torch.nn.modules.transformer": {
        "_detect_is_causal_mask": ("know where a transformer looks at a mask", "checked functions"),
    },
    "torch.distributions.kl": {
        "_dispatch_kl": ("find the formula of a divergence", "distributions"),
    },
    "torch._functorch.autograd_function": {
        "autograd_function_apply": ("know a captured Function", "autograd.Function"),
    },
}  # fmt: skip
"""The uses of the names in each module, as PyTorch 2.10 has them; some are modules themselves."""

NAMES = {
    "HashableTracker": Name(
        "torch._dynamo.variables.dicts.ConstDictVariable._HashableTracker",
        "know a key of a dict, and which are equal",
        ("missing keys", "equal keys"),
        moved=(("2.12", "torch._dynamo.variables.hashable.HashableTracker"),),
    ),
    "dynamo": Name("torch._dynamo", "configure, reset and enter Dynamo", ("capture",)),
    "EnumVariable": Name(
        "torch._dynamo.variables.constant.EnumVariable",
        "know a member of an enum, up to 2.11",
        ("members of enums", "own methods"),
        newer=True,
    ),
    "invoke_subgraph": Name(
        "torch._dynamo.variables.invoke_subgraph",
        "guard what a region that is captured once depends on",
        ("regions captured once", "equal modules"),
        newer=True,
    ),
    "variables_of_torch": Name(
        "torch._dynamo.variables.torch",
        "let modes see functions that make tensors",
        ("calls that modes see",),
    ),
    "object_protocol": Name(
        "torch._dynamo.variables.object_protocol",
        "replace operators of objects, and what is remembered of classes",
        ("identity", "operators of symbols", "answers of classes"),
        newer=True,
    ),
    **names_in(
        _USES,
        {
            "ExceptionVariable": (("2.15", "torch._dynamo.variables.exception.ExceptionVariable"),),
        },
        feature="capture",
    ),
}
"""The names, with what they are used for and where they have moved."""

__getattr__ = finder(globals(), NAMES)


def forget() -> None:
    """Look for all names again when they are next imported."""
    lookup.forget(globals(), NAMES)
