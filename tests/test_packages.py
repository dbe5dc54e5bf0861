"""Packages of PyTorch's operations and of models, equal to the programs that made them.

The default run takes a few operations and three models; ``TJ_FULL=1`` takes every third operation
and all models.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import tj_core as tj
import torch
from tj_conformance.databases.known import UNDEFINED
from tj_conformance.databases.op_db import full_name, operations, sample_arguments
from tj_conformance.models import MODELS, chosen
from tj_conformance.oracle.compare import call_differences, seeded
from tj_conformance.oracle.twins import clone_tree
from tj_conformance.sampling import FULL
from tj_core.extend import PackageError

if TYPE_CHECKING:
    from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

REFUSED = {
    "allclose": "cannot be captured whole",
    "linalg.lstsq": "cannot be captured whole",
    "nn.functional.linear_cross_entropy.chunked": "has no place in a package",
    "nn.functional.linear_cross_entropy.chunked_none": "has no place in a package",
    "nn.functional.triplet_margin_with_distance_loss": "has no place in a package",
    "sparse.sampled_addmm": "an argument is a tensor of layout torch.sparse_csr",
}
"""Operations that no package holds, and a text of the reason."""


def sample() -> list[Any]:
    """Every third operation; in the default run about one in twenty of these, by hash."""
    # Those of the jiterator exist on GPUs alone.
    found = [op for op in operations()[::3] if not full_name(op).startswith("jiterator")]
    digests = [hashlib.sha256(full_name(op).encode()).digest()[0] for op in found]
    return [op for op, digest in zip(found, digests, strict=True) if FULL or digest < 12]


@pytest.mark.parametrize("op", sample(), ids=full_name)
def test_an_operation(op: Any) -> None:
    def program(*args: Any, **kwargs: Any) -> Any:
        return op.op(*args, **kwargs)

    for args, kwargs in sample_arguments(op, torch.float32, 1, False):
        mine, theirs, exported = (clone_tree((args, kwargs)) for _ in range(3))
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            expected = seeded(op.op, *theirs)
            torch.compiler.reset()
            if text := REFUSED.get(full_name(op)):
                with pytest.raises(PackageError, match=text):
                    tj.export(program, exported[0], keywords=exported[1], plugins=["torch"])
                continue
            package = tj.export(program, exported[0], keywords=exported[1], plugins=["torch"])
            got = seeded(package, *mine)
        defined = full_name(op) not in UNDEFINED
        differences = call_differences(got, mine, expected, theirs, values=defined)
        assert not [*differences]


REGISTERED = {"qwen2moe": "torch.ops.transformers.grouped_mm_fallback"}
"""Models with an operator that transformers registers: its import has to come first."""

ELSEWHERE = """
import json, sys
import torch, tj_core as tj
from tj_torch.package.tensors import packed, unpacked
refused = {}
for name in sys.argv[2:]:
    try:
        package = tj.load(f"{sys.argv[1]}/{name}.tjp")
    except tj.TjError as error:
        refused[name] = error.message
        continue
    with open(f"{sys.argv[1]}/{name}.in", "rb") as file:
        given = unpacked(file.read())
    found = package(**given, use_cache=False) if "use_cache" in str(package) else package(**given)
    with open(f"{sys.argv[1]}/{name}.out", "wb") as file:
        file.write(packed({k: v for k, v in found.items() if isinstance(v, torch.Tensor)}))
imported = {".".join(m.split(".")[:2]) for m in sys.modules}
compilers = sorted(imported & {"torch._dynamo", "torch._inductor", "transformers"})
print(json.dumps([compilers, refused]))
"""


def test_models_in_another_process(tmp_path: Path) -> None:
    """Whole models, loaded without transformers and without a compiler: the same bits."""
    pytest.importorskip("transformers", reason="the models are transformers'")
    from tj_torch.package.tensors import packed, unpacked

    expected: dict[str, dict[str, torch.Tensor]] = {}
    names = chosen("llama")
    for name in names:
        model = MODELS[name].build().eval()
        batch = {k: v for k, v in MODELS[name].batch().items() if k != "labels"}
        if name in ("t5", "whisper"):
            batch["decoder_input_ids"] = MODELS[name].batch()["labels"]
        more = {} if name in ("bert", "vit") else {"use_cache": False}
        with torch.no_grad():  # first: transformers prepares a model in its first call
            result = model(**batch, **more)
        package = tj.export(model, keywords={**batch, **more}, plugins=["torch"])
        package.save(tmp_path / f"{name}.tjp")
        (tmp_path / f"{name}.in").write_bytes(packed(batch))
        expected[name] = {k: v for k, v in result.items() if isinstance(v, torch.Tensor)}
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(tmp_path), *names],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    compilers, refused = json.loads(done.stdout)
    assert compilers == []
    assert refused.keys() == REGISTERED.keys() & {*names}
    for name, message in refused.items():
        assert REGISTERED[name] in message
    for name in set(names) - refused.keys():
        got = unpacked((tmp_path / f"{name}.out").read_bytes())
        assert got.keys() == expected[name].keys()
        for key, value in expected[name].items():
            assert torch.equal(got[key], value), (name, key)
