"""Names of Inductor and what it needs, found where this PyTorch has them when first imported.

Most import Inductor as a whole, and are found when a region is compiled. A name that this PyTorch
lacks raises `MissingNameError`; `features` says what is lost then.
"""

from __future__ import annotations

from tj_torch.extend import forget_names, names_finder, names_in

__all__ = [
    "COPIES",
    "DRAWS",
    "EQUAL",
    "FAST",
    "FINISHED",
    "FORMULAS",
    "FOUND_AGAIN",
    "IMAGES",
    "IN_PLACE",
    "KERNELS",
    "LINKED",
    "LOW",
    "NAMES",
    "ONEDNN",
    "ONE_FILE",
    "PLACES",
    "PRIORITY",
    "READERS",
    "READS",
    "REGIONS",
    "ROWS",
    "STRIDES",
    "SYMBOLS",
    "VECTORS",
    "VERSIONS",
    "forget",
]

REGIONS = "regions"
STRIDES = "strides of results"
FORMULAS = "formulas of operators"
KERNELS = "errors of kernels"
ONE_FILE = "one file of kernels"
FAST = "elementary functions"
FOUND_AGAIN = "built kernels"
FINISHED = "finished regions"
VERSIONS = "versions of results"
LOW = "low precision"
COPIES = "copies"
ONEDNN = "calls of oneDNN"
SYMBOLS = "sizes that are symbols"
EQUAL = "equal operators"
IN_PLACE = "writes in place"
VECTORS = "kinds of vectors"
LINKED = "links to empty libraries"
READS = "reads before writes"
PLACES = "whole numbers of places"
IMAGES = "layouts of images"
PRIORITY = "priority of compilers"
READERS = "values with one reader"
DRAWS = "random bits"
ROWS = "rows that an index picks"

_USES: dict[str, dict[str, tuple[str, ...]]] = {
    "torch._C._dynamo.guards": {
        "_torchinductor_pyobject_tensor_data_ptr": ("load the library of a package", FOUND_AGAIN),
    },
    "torch._functorch.compile_utils": {
        "fx_graph_cse": ("compute equal operators once", EQUAL),
    },
    "torch._guards": {
        "TracingContext": ("have Inductor say which strides it chose", REGIONS),
        "tracing": ("let Inductor find that context", REGIONS),
    },
    "torch._inductor": {
        "cpp_builder": ("run compilers after calls", PRIORITY),
        "cpp_builder._run_compile_cmd": ("run compilers after calls", PRIORITY),
        "cpu_vec_isa": ("know the processor's kinds of vectors", VECTORS),
        "config": ("set and read Inductor's settings", REGIONS),
        "config.patch": ("set them for one region", REGIONS),
        "config.post_grad_custom_post_pass": ("run the pass that says strides", STRIDES),
        "config.save_config_portable": ("know what compiled code depends on", FINISHED,
                                        FOUND_AGAIN),
        "config.get_config_copy": ("know what compiled code depends on", FINISHED, FOUND_AGAIN),
    },
    "torch._inductor.async_compile": {
        "AsyncCompile": ("have kernels wait for each other", KERNELS, ONE_FILE, FAST),
        "AsyncCompile.cpp_pybinding": ("get the texts of kernels, and change them", KERNELS,
                                       ONE_FILE, FAST),
        "AsyncCompile.wait": ("know the modules that wait for kernels", KERNELS, ONE_FILE, FAST),
    },
    "torch._inductor.codecache": {
        "CppPythonBindingsCodeCache": ("build kernels", KERNELS, ONE_FILE, FAST, FOUND_AGAIN,
                                       DRAWS),
        "CppPythonBindingsCodeCache.load_pybinding": ("build one kernel from its text", KERNELS,
                                                      FAST, DRAWS),
        "CppPythonBindingsCodeCache.suffix_template": ("have the text that Python calls kernels by",
                                                       ONE_FILE),
        "CppPythonBindingsCodeCache.load_async": ("build a file of many kernels", ONE_FILE),
        "CppPythonBindingsCodeCache._load_library": ("load a file that was built before",
                                                     FOUND_AGAIN),
        "LOCK_TIMEOUT": ("wait for another process that builds", FOUND_AGAIN),
        "get_lock_dir": ("lock a file that another process may build", FOUND_AGAIN),
        "PyCodeCache": ("make modules of texts", FINISHED),
        "PyCodeCache.load": ("make a module of the text of a region", FINISHED),
    },
    "torch._inductor.codegen.cpp": {
        "CppVecOverrides": ("convert vectors to another type (2.10)", LOW),
        "TilingSelect": ("choose the loop of vectors", ROWS),
        "TilingSelect._select_tiling_indices": ("choose the loop of vectors", ROWS),
    },
    "torch._inductor.compile_fx": {"compile_fx_inner": ("compile a graph of operators", REGIONS)},
    "torch._inductor.cpp_builder": {
        "get_cpp_compiler": ("know the C++ compiler", FINISHED, FOUND_AGAIN, LINKED),
    },
    "torch._inductor.cpu_vec_isa": {
        "supported_vec_isa_list": ("know the kinds of vectors that Inductor has", VECTORS),
        "valid_vec_isa_list": ("try them one after the other", VECTORS),
        "x86_isa_checker": ("know those that the processor has", VECTORS),
    },
    "torch._inductor.custom_graph_pass": {
        "CustomGraphPass": ("say which strides results are to have", STRIDES),
    },
    "torch._inductor.decomposition": {
        "select_decomp_table": ("trace the operators that Inductor has kernels for", REGIONS),
    },
    "torch._inductor.dependencies": {
        "extract_read_writes": ("know what loops read and write", ROWS),
    },
    "torch._inductor.fx_passes": {"reinplace": ("know the memory of a value", STRIDES)},
    "torch._inductor.fx_passes.reinplace": {
        "get_node_storage": ("know the memory of a value", STRIDES),
    },
    "torch._inductor.fx_passes.post_grad": {
        "noop_registry": ("know which copies Inductor removes", COPIES),
    },
    "torch._inductor.graph": {
        "GraphLowering": ("choose layouts of images", IMAGES),
        "GraphLowering.find_nodes_prefer_channels_last": ("choose layouts of images", IMAGES),
    },
    "torch._inductor.index_propagation": {
        "IndexPropagation": ("know the expressions that stand for integers", PLACES),
        "IndexPropagation.propagate_sympy": ("leave out those that overflow", PLACES),
    },
    "torch._inductor.inductor_prims": {
        "force_stride_order": ("compute a factor once, and write it to memory", FAST),
    },
    "torch._inductor.ir": {
        "ExternKernel": ("lay out an argument of a call", ONEDNN, STRIDES),
        "ExternKernel.require_exact_strides": ("lay out a matrix", ONEDNN, STRIDES),
        "ExternKernel.require_channels_last": ("lay out images", ONEDNN),
        "FlexibleLayout": ("lay out values that are written", READERS),
        "StorageBox": ("choose values to write to memory", READERS),
        "StorageBox.should_realize_on_reuse": ("choose values to write to memory", READERS),
    },
    "torch._inductor.lowering": {
        "fallback_handler": ("have an operator called as it is", ONEDNN, READS),
        "lowerings": ("have a new value beside the old one", READS),
    },
    "torch._inductor.runtime.runtime_utils": {
        "cache_dir": ("find Inductor's folder of built files", FOUND_AGAIN),
        "default_cache_dir": ("find the one that all processes share", LINKED),
    },
    "torch._inductor.virtualized": {"V": ("tell Inductor the fake tensors' mode", REGIONS)},
    "torch._ops": {"OpOverload": ("tell operators from functions", REGIONS)},
    "torch._subclasses.fake_tensor": {"FakeTensorMode": ("trace without data", REGIONS)},
    "torch.fx.experimental.proxy_tensor": {
        "make_fx": ("trace a region to operators", REGIONS),
        "disable_proxy_modes_tracing": ("compare strides that are symbols", SYMBOLS),
    },
    "torch.utils._sympy.value_ranges": {
        "ValueRanges": ("know which integers overflow", PLACES),
        "bound_sympy": ("know which integers overflow", PLACES),
    },
    "torch.utils._filelock": {
        "FileLock": ("lock a file that another process may build", FOUND_AGAIN),
    },
}  # fmt: skip

NAMES = names_in(_USES)
"""The names in each module, as PyTorch 2.10 to 2.15 have them, with uses and features."""

__getattr__ = names_finder(globals(), NAMES)


def forget() -> None:
    """Look for all names again when they are next imported."""
    forget_names(globals(), NAMES)
