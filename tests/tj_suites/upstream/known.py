"""Tests that fail with tj alone for a reason that a user would accept, one by one.

Compared in both directions: a test that fails and is not listed counts, and so does an entry that
does not fail with tj alone. Names are those of PyTorch 2.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tj_suites.upstream.compare import Report, Verdict
from tj_suites.upstream.kinds import EXACT, INSTALLED, Mode

__all__ = ["KNOWN", "Known", "disagreements", "listed", "text"]


@dataclass(frozen=True, slots=True)
class Known:
    """Tests of one file, ``Class.test_name``, that fail for one reason.

    ``error`` is a part of the error that says so; they fail for another reason if it is not there.
    """

    file: str
    reason: str
    tests: tuple[str, ...]
    error: str = ""
    modes: tuple[Mode, ...] = ()
    """The modes in which they fail; none means those in which the file is run."""

    def concerns(self, report: Report) -> bool:
        """Say whether a report is of this file, in one of these modes."""
        modes = self.modes or (EXACT | INSTALLED).get(self.file, (Mode.TJ,))
        return self.file == report.file and report.mode in modes


_NUMPY_FRAMES = (
    "counts the frames of NumPy programs, which tj leaves to NumPy where last bits may differ"
)

# Complex numbers are in no region, and are not compared.
_LAZY = (
    "bfloat16",
    "bool",
    "float16",
    "float32",
    "float64",
    "int16",
    "int32",
    "int64",
    "int8",
    "uint8",
)

KNOWN = (
    Known(
        "inductor/test_torchinductor.py",
        "counts graphs that Dynamo makes for other sizes: Inductor asks for one more than tj",
        ("CpuTests.test_chunk_recompiles_cpu",),
        "Expected 3 but got 2",
    ),
    Known(
        "inductor/test_torchinductor_dynamic_shapes.py",
        "counts graphs that Dynamo makes for other sizes: Inductor asks for one more than tj",
        ("DynamicShapesCpuTests.test_chunk_recompiles_dynamic_shapes_cpu",),
        "Expected 2 but got 1",
    ),
    Known(
        "inductor/test_torchinductor.py",
        "asserts which number one that depends on data is, and runs as it is, with a warning",
        (
            "CpuTests.test_nonzero_unbacked_refinement_cpu",
            "CpuTests.test_unbacked_floordiv_simplify_cpu",
        ),
        "asserts which number",
    ),
    Known(
        "inductor/test_torchinductor_dynamic_shapes.py",
        "asserts which number one that depends on data is, and runs as it is, with a warning",
        (
            "DynamicShapesCpuTests.test_nonzero_unbacked_refinement_dynamic_shapes_cpu",
            "DynamicShapesCpuTests.test_unbacked_floordiv_simplify_dynamic_shapes_cpu",
        ),
        "asserts which number",
    ),
    Known(
        "test_torch.py",
        "asserts that a tensor and its lazy clone share memory after a call with both: tj compares "
        "their addresses, which makes the clone a copy",
        tuple(
            f"TestTorchDeviceTypeCPU.test_lazy_clone_binary_op_no_materialize_cpu_{dtype}"
            for dtype in _LAZY
        ),
        "False is not true",
    ),
    Known(
        "inductor/test_torchinductor.py",
        "asks that Dynamo refuses a generator as an argument, which is a graph break",
        ("CpuTests.test_randn_generator_cpu",),
        "Failed to convert args/kwargs to proxy",
    ),
    Known(
        "functorch/test_eager_transforms.py",
        "expects that requires_grad_() is refused under grad: Dynamo leaves the call out, which"
        " changes nothing there",
        ("TestComposabilityCPU.test_requires_grad_inside_transform_cpu",),
        "RuntimeError not raised",
        modes=(Mode.OUTSIDE,),
    ),
    Known(
        "dynamo/test_functions.py",
        "wants NumPy's work on a tensor's data in one graph, which tj leaves to NumPy",
        (
            "FunctionTests.test_elipsis",
            "FunctionTests.test_mean_sum_np",
            "FunctionTests.test_ndarray_builtin_functions",
            "FunctionTests.test_ndarray_method",
            "FunctionTests.test_ndarray_methods_returning_scalar",
            "FunctionTests.test_ndarray_reshape",
            "FunctionTests.test_ndarray_transpose",
            "FunctionTests.test_numpy_attributes",
            "FunctionTests.test_numpy_dtype_argument_to_function",
            "FunctionTests.test_numpy_dtype_call_in_function",
            "FunctionTests.test_numpy_fft",
            "FunctionTests.test_numpy_linalg",
            "FunctionTests.test_numpy_meshgrid",
            "FunctionTests.test_numpy_random",
            "FunctionTests.test_return_multiple_numpy_ndarray",
            "FunctionTests.test_return_numpy_ndarray",
        ),
        "NumPy's ",
    ),
    Known(
        "dynamo/test_activation_checkpointing.py",
        "refuses a graph break in compiled autograd, where the backward of a program of tj is one",
        ("ActivationCheckpointingViaTagsTests.test_tags_must_save_tensor_that_has_backward_hook",),
        "Compiled.backward",
    ),
    Known(
        "dynamo/test_modules.py",
        "counts kernels that Inductor generates, after the results were compared",
        ("OptimizedModuleTest.test_save_and_load_inductor",),
        "0 not greater than 0",
    ),
    Known(
        "functorch/test_aotdispatch.py",
        "looks at the graph that AOT autograd gives its compiler, after the results were compared",
        (
            "TestAOTAutograd.test_batchnorm_inference",
            "TestAOTAutograd.test_buffer_batch_norm",
            "TestAOTAutograd.test_buffer_copied_in_graph",
            "TestAOTAutograd.test_buffer_copied_in_graph_with_different_shapes",
            "TestAOTAutograd.test_composite_impl_compile",
            "TestAOTAutograd.test_dynamic_shape_output_not_in_bw_graph",
            "TestAOTAutograd.test_grad_context",
            "TestAOTAutograd.test_input_aliased_with_mutation_output_alias",
            "TestAOTAutograd.test_input_data_and_metadata_mutation",
            "TestAOTAutograd.test_input_inplace_requires_grad_true",
            "TestAOTAutograd.test_input_metadata_mutation_aliases",
            "TestAOTAutograd.test_input_mutation_alias_everything",
            "TestAOTAutograd.test_input_mutation_aliases_other_input",
            "TestAOTAutograd.test_input_mutation_aliases_other_input2",
            "TestAOTAutograd.test_input_mutation_and_output_view",
            "TestAOTAutograd.test_input_mutation_false_aliasing",
            "TestAOTAutograd.test_input_mutation_hidden_from_autograd_aliasing",
            "TestAOTAutograd.test_input_mutation_is_output",
            "TestAOTAutograd.test_input_mutation_multiple",
            "TestAOTAutograd.test_input_mutation_output_view_multiple",
            "TestAOTAutograd.test_input_mutation_requires_grad_no_grad",
            "TestAOTAutograd.test_input_mutation_requires_grad_no_grad_inference_graph",
            "TestAOTAutograd.test_input_mutation_return",
            "TestAOTAutograd.test_input_mutation_set__nop",
            "TestAOTAutograd.test_input_mutation_simple",
            "TestAOTAutograd.test_input_mutation_storage_resize_down",
            "TestAOTAutograd.test_input_mutation_storage_resize_up",
            "TestAOTAutograd.test_input_output_view_metadata_mutate_multiple",
            "TestAOTAutograd.test_input_output_view_mutate_multiple",
            "TestAOTAutograd.test_input_output_view_simple",
            "TestAOTAutograd.test_new_inp_requires_grad_now",
            "TestAOTAutograd.test_output_aliases_intermediate_and_returned",
            "TestAOTAutograd.test_output_aliases_intermediate_and_returned_flipped",
            "TestAOTAutograd.test_output_aliases_intermediate_inplace_view_with_detach",
            "TestAOTAutograd.test_output_aliases_intermediate_multiple",
            "TestAOTAutograd.test_output_aliases_intermediate_multiple_mixed",
            "TestAOTAutograd.test_output_aliases_intermediate_no_grad",
            "TestAOTAutograd.test_output_aliases_intermediate_single",
            "TestAOTAutograd.test_output_all_alias_types",
            "TestAOTAutograd.test_set__and_data_mutation_good",
            "TestAOTAutograd.test_view_and_inplace_view",
            "TestAOTAutogradWithCache.test_batchnorm_inference",
            "TestAOTAutogradWithCache.test_buffer_batch_norm",
            "TestAOTAutogradWithCache.test_buffer_copied_in_graph",
            "TestAOTAutogradWithCache.test_buffer_copied_in_graph_with_different_shapes",
            "TestAOTAutogradWithCache.test_dynamic_shape_output_not_in_bw_graph",
            "TestAOTAutogradWithCache.test_grad_context",
            "TestAOTAutogradWithCache.test_input_mutation_storage_resize_down",
            "TestAOTAutogradWithCache.test_input_mutation_storage_resize_up",
            "TestAOTAutogradWithCache.test_new_inp_requires_grad_now",
            "TestAOTAutogradWithDynamo.test_batchnorm_inference",
            "TestAOTAutogradWithDynamo.test_buffer_batch_norm",
            "TestAOTAutogradWithDynamo.test_buffer_copied_in_graph",
            "TestAOTAutogradWithDynamo.test_buffer_copied_in_graph_with_different_shapes",
            "TestAOTAutogradWithDynamo.test_dynamic_shape_output_not_in_bw_graph",
            "TestAOTAutogradWithDynamo.test_grad_context",
            "TestAOTAutogradWithDynamo.test_input_mutation_storage_resize_down",
            "TestAOTAutogradWithDynamo.test_input_mutation_storage_resize_up",
            "TestAOTAutogradWithDynamo.test_new_inp_requires_grad_now",
            "TestAOTExport.test_aot_export_ban_dropout_mut_pre_dispatch",
            "TestAOTDispatch.test_aot_dispatch_simple",
        ),
        "'NoneType'",
    ),
    Known(
        "functorch/test_aotdispatch.py",
        "looks at the graphs that AOT autograd's partitioner makes",
        (
            "TestPartitioning.test_default_partitioner_getitem",
            "TestPartitioning.test_default_partitioner_output_tensor_shape_tensor",
            "TestPartitioning.test_min_cut_partitioner",
            "TestPartitioning.test_min_cut_partitioner_output_tensor_shape_tensor",
            "TestPartitioning.test_min_cut_partitioner_save_shape",
        ),
        "'NoneType'",
    ),
    Known(
        "functorch/test_aotdispatch.py",
        "looks whether AOT autograd made a graph for inference",
        (
            "TestAOTDispatch.test_aot_dispatch_output_requires_grad_in_no_grad_views",
            "TestPartitioning.test_generate_gives_inference_graph",
        ),
        "False is not true",
    ),
    Known(
        "functorch/test_aotdispatch.py",
        "looks for the autograd node of a program of AOT autograd by its name",
        (
            "TestAOTAutograd.test_output_aliases_input_multi_output_view",
            "TestAOTAutograd.test_output_aliases_intermediate_multi_output_view",
            "TestAOTAutogradWithCache.test_output_aliases_input_multi_output_view",
            "TestAOTAutogradWithCache.test_output_aliases_intermediate_multi_output_view",
            "TestAOTAutogradWithDynamo.test_output_aliases_input_multi_output_view",
            "TestAOTAutogradWithDynamo.test_output_aliases_intermediate_multi_output_view",
        ),
        "False is not true",
    ),
    Known(
        "functorch/test_aotdispatch.py",
        "expects that AOT autograd refuses the program, which tj runs as eager does",
        (
            "TestAOTAutograd.test_backward_mutation_forward_inputs_create_graph",
            "TestAOTAutograd.test_backward_mutation_metadata",
            "TestAOTAutograd.test_input_data_and_metadata_mutation_aliases_other_input",
            "TestAOTAutograd.test_input_mutation_aliases_and_none_require_gradients",
            "TestAOTAutograd.test_set__and_data_mutation_bad",
            "TestAOTAutograd.test_set__not_allowed",
            "TestAOTAutograd.test_subclass_metadata_mutation_req_grad_False",
            "TestAOTAutograd.test_subclass_metadata_mutation_req_grad_True",
            "TestAOTAutogradWithCache.test_backward_mutation_forward_inputs_create_graph",
            "TestAOTAutogradWithDynamo.test_backward_mutation_forward_inputs_create_graph",
            "TestAOTDispatch.test_aot_dispatch_incorrect_backward",
        ),
        "Error not raised",
    ),
    Known(
        "functorch/test_aotdispatch.py",
        "looks at names and numbers that AOT autograd gives its graphs",
        (
            "TestAOTAutograd.test_compilation_context",
            "TestAOTAutograd.test_invalid_dupe_left_bias",
        ),
    ),
    Known(
        "test_autograd.py",
        "looks at the autograd nodes of single operations: a compiled program has one node",
        (
            "TestAutograd.test_backward_hook_relative_ordering",
            "TestAutograd.test_function",
            "TestAutograd.test_grad_fn_attr_bindings",
            "TestAutograd.test_inplace_on_view_backward",
            "TestAutograd.test_no_unnecessary_unwrapping",
            "TestAutograd.test_view_replay_enabled",
            "TestAutogradLogging.test_logging",
        ),
    ),
    Known(
        "test_autograd.py",
        "expects the wrong gradient that eager has there, which the test says is a bug",
        ("TestAutograd.test_autograd_inplace_views_cross_dtype",),
    ),
    Known(
        "dynamo/test_aot_autograd.py",
        "expects that AOT autograd refuses the program, which tj runs as eager does",
        (
            "AotAutogradFallbackTests.test_data_ptr_access_fails_in_backward",
            "AotAutogradFallbackTests.test_donated_buffer_with_retain_or_create_graph4",
            "AotAutogradFallbackTests.test_double_backward_errors",
        ),
    ),
    Known(
        "dynamo/test_aot_autograd.py",
        "gives AOT autograd's own node, called by hand, a gradient that eager's does not take",
        ("AotAutogradFallbackTests.test_aot_grad_mode_mutation",),
    ),
    Known(
        "dynamo/test_autograd_function.py",
        "refuses a graph break at a backward that returns too few gradients, as eager does",
        ("AutogradFunctionTests.test_enum_arg",),
        "its backward returns 1 gradients for 2 arguments",
    ),
    Known(
        "dynamo/test_autograd_function.py",
        "refuses a graph break at a Function that is given tensors with gradients in a list",
        (
            "AutogradFunctionTests.test_multiple_different_non_tensor_inputs",
            "AutogradFunctionTests.test_tensor_list_as_input",
        ),
        "it uses a tensor that is none of its arguments",
    ),
    Known(
        "dynamo/test_higher_order_ops.py",
        "calls a compiled function below torch.func, where Dynamo takes its own backend alone",
        (
            "FuncTorchHigherOrderOpTests.test_vmap_recompile_different_config",
            "FuncTorchHigherOrderOpTests.test_vmap_recompile_same_config",
            "FuncTorchHigherOrderOpTests.test_vmap_recompile_with_randomness",
            "HigherOrderOpVmapGuardTests.test_emit_functorch_guard_if_active",
            "HigherOrderOpVmapGuardTests.test_vmap_grad_vmap_guard_fail",
            "HigherOrderOpVmapGuardTests.test_vmap_guard_fail",
            "HigherOrderOpVmapGuardTests.test_vmap_guard_fail_different_state",
            "HigherOrderOpVmapGuardTests.test_vmap_recompile_different_states",
        ),
    ),
    Known(
        "dynamo/test_higher_order_ops.py",
        "expects that AOT autograd refuses the program, which tj runs as eager does",
        (
            "FuncTorchHigherOrderOpTests.test_grad_call_compiled_backward_fn",
            "FuncTorchHigherOrderOpTests.test_vjp_call_compiled_backward_fn",
            "FuncTorchHigherOrderOpTests.test_vmap_call_compiled_backward_fn",
        ),
    ),
    Known(
        "dynamo/test_hooks.py",
        "refuses a graph break in compiled autograd, where the backward of a program of tj is one",
        (
            "HooksTests.test_hook_with_closure",
            "HooksTests.test_hook_with_nested_closure",
            "HooksTests.test_input_hooks_same",
        ),
        "the function `Compiled.backward`",
    ),
    Known(
        "dynamo/test_misc.py",
        "expects that AOT autograd runs the backward, which raises, when it compiles",
        ("MiscTests.test_anomaly_aot_autograd",),
    ),
    Known(
        "dynamo/test_misc.py",
        "expects that a backward is refused where deterministic algorithms are asked for after the "
        "forward, and tj runs it as eager does",
        ("MiscTests.test_backward_deterministic_mode_mismatch_warning",),
    ),
    Known(
        "dynamo/test_misc.py",
        _NUMPY_FRAMES,
        (
            "MiscTests.test_dtypes_no_graphbreaks",
            "MiscTests.test_graph_break_correctly_when_passing_numpy_ndarray_to_torch_function",
            "MiscTests.test_numpy_ndarray_graph_break",
            "MiscTests.test_numpy_take_along_axis",
            "MiscTests.test_tensor_interacts_with_numpy_ndarray",
            "MiscTests.test_trace_ndarray_frame",
        ),
    ),
    Known(
        "dynamo/test_misc.py",
        "wants NumPy's arithmetic in one graph, which tj leaves to NumPy: last bits may differ",
        (
            "MiscTests.test_generate_tensor_from_list_of_numpy_primitive_type",
            "MiscTests.test_mandelbrot_numpy",
            "MiscTests.test_numpy_as_global",
            "MiscTests.test_numpy_int_constant",
            "MiscTests.test_numpy_ndarray_works_with_builtin_function",
            "MiscTests.test_numpy_size_attr",
        ),
    ),
    Known(
        "dynamo/test_misc.py",
        "expects a result where NumPy raises, which does the computing",
        ("MiscTests.test_numpy_min",),
    ),
    Known(
        "dynamo/test_repros.py",
        "expects that AOT autograd refuses the program, which tj runs as eager does",
        ("ReproTests.test_as_strided_on_existing_view_banned",),
    ),
    Known(
        "dynamo/test_repros.py",
        _NUMPY_FRAMES,
        (
            "ReproTests.test_numpy_not_ndarray_recompiles",
            "ReproTests.test_numpy_tobytes_no_error",
        ),
    ),
)
"""The table of the standing measure."""


def listed(report: Report, known: Iterable[Known] = KNOWN) -> frozenset[str]:
    """The tests of a report's file and mode that the table has."""
    return frozenset(test for k in known if k.concerns(report) for test in k.tests)


def disagreements(report: Report, known: Iterable[Known] = KNOWN) -> Iterator[str]:
    """Where a report and the table say different things."""
    known = tuple(known)
    errors = {test: k.error for k in known if k.concerns(report) for test in k.tests}
    names = errors.keys()
    for outcome in report.tests(Verdict.ALONE):
        if outcome.test not in names:
            yield f"{outcome.test}: {outcome.status.value}: {outcome.summary}"
        elif errors[outcome.test] not in f"{outcome.summary}\n{outcome.error}":
            yield f"{outcome.test}: not for the reason in the table: {outcome.summary}"
    for verdict in (Verdict.PASSED, Verdict.EVERYWHERE):
        for outcome in report.tests(verdict):
            if outcome.test in names:
                yield f"{outcome.test}: {verdict.value}, remove it from the table"


def text(known: Iterable[Known] = KNOWN) -> str:
    """The table as text, one reason after the other."""
    return "\n".join(line for k in known for line in _lines(k)) or "nothing is listed"


def _lines(k: Known) -> Iterator[str]:
    yield f"{k.file}: {k.reason}"
    for test in k.tests:
        yield f"    {test}"
