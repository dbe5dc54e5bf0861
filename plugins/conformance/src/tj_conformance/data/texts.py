"""Lines of made-up programs whose sizes and control flow depend on data.

Values ``{a}`` and ``{b}`` are matrices of any number of rows, none included, and three columns.
``{m}`` is a mask of the rows of ``{a}``, ``{k}`` a count for each, ``{n}`` and ``{f}`` are numbers.
"""

from __future__ import annotations

__all__ = [
    "CALLS",
    "COUNTS",
    "FLOATS",
    "FLOW",
    "FUNCTIONS",
    "HANDLED",
    "INSIDE",
    "LAYERS",
    "MASKS",
    "NUMBERS",
    "RETURNED",
    "WRITES",
]

MASKS = (
    "{a}[:, 0] > 0",
    "{a}.sum(1) > 0.5",
    "{a}[:, 1] < 99",
    "{a}[:, 1] > 99",
    "{a}.abs().amax(1) > 0.7",
    "torch.arange(len({a})) % 2 == 0",
    "torch.rand(len({a})) > 0.5",
)
"""Masks of the rows."""

COUNTS = (
    "({a}.detach().abs()[:, 0] * 2).long().clamp(max=3)",
    "({a}[:, 1] > 0).long() + 1",
    "({a}.detach()[:, 2] > 0).long() * 2",
)
"""Counts from 0 to 3 for each row."""

NUMBERS = (
    "int({a}.detach().abs().sum()) % 4",
    "({m}).sum().item()",
    "int(({m}).sum())",
    "({m}).nonzero().shape[0]",
    "len({a}[{m}])",
    "{a}.detach().argmax(1).max().item() if len({a}) else 0",
    "t.item()",
    "int(t)",
    "t.item() + {n}",
    "max({n}, int(t)) % 5",
    "(t + 1).tolist()",
    "min(int(t), {n})",
    "{a}.shape[0] - int(t)",
    "len(torch.unique({a}.detach().round()))",
    "int({a}.detach().gt(0).sum() // 3)",
    "torch.count_nonzero({m}).item()",
    "c.tolist()[-1] if len(c) else {n}",
    "len({a})",
)
"""Integers that are not negative, but for differences."""

FLOATS = (
    "{a}.detach().sum().item()",
    "float(t)",
    "float({a}.detach().abs().mean()) if len({a}) else 0.5",
    "{a}.detach().norm().item()",
    "t.item() / 2",
    "{n} * 0.5",
    "(t.double() * 0.3).item()",
)
"""Numbers that are not whole."""

CALLS = (
    "{a}[{m}]",
    "{a}[{m}] * 2 + 1",
    "{a}[({m}).nonzero().squeeze(1)]",
    "{a}[({m}).nonzero(as_tuple=True)[0]]",
    "{a}[torch.where({m})[0]]",
    "{a}[torch.argwhere({m})[:, 0]]",
    "{a}[({m}).nonzero()[:, 0], :] * {b}.sum(0)",
    "torch.masked_select({a}, {a} > 0)[:, None] * {b}.sum(0)",
    "{a}[{a} > 0].view(-1, 1) + {b}.sum(0)",
    "{a}.masked_select(({m})[:, None]).view(-1, 3)",
    "{a}.masked_scatter(({m})[:, None], torch.cat([{b}, {a} * 2]))",
    "{a}.masked_fill(({m})[:, None], {f})",
    "torch.where(({m})[:, None], {a}, {f})",
    "torch.unique({a}.detach().round(), dim=0)",
    "{a}[torch.unique(({k}).clamp(max=max(len({a}) - 1, 0)))] if len({a}) else {a}",
    "torch.unique({a}.detach().sign(), dim=0, return_counts=True)[1][:, None] * {b}.sum(0)",
    "{a}.sum(0) * torch.unique(({k}), return_inverse=True)[1][:, None]",
    "torch.unique_consecutive({k})[:, None] * {b}.sum(0)",
    "torch.repeat_interleave({a}, {k}, dim=0)",
    "{a}.repeat_interleave({k}, 0)",
    "{a}.repeat_interleave({k}, 0, output_size=int(({k}).sum()))",
    "torch.repeat_interleave({k})[:, None] * {b}.sum(0)",
    "{a}.repeat_interleave(int(t), 0)",
    "torch.bincount({k})[:, None] * {b}.sum(0)",
    "torch.bincount({k}, minlength={n})[:, None] + {b}.sum(0)",
    "torch.bincount({k}, weights={a}[:, 0].detach())[:, None] + {b}.sum(0)",
    "{a}[: {n}]",
    "{a}[{n} :]",
    "{a}[-{n} :]",
    "{a}[: {n}] * {b}[: {n}].sum()",
    "{a}[:: {n} + 1]",
    "{a}.narrow(0, 0, min({n}, len({a})))",
    "{a}[0 : int(t)] + {n}",
    "torch.full(({n}, 3), {f}, dtype={a}.dtype) + {b}.sum(0)",
    "torch.zeros({n}, 3, dtype={a}.dtype)",
    "{a}.new_ones({n}, 3) * {b}.mean(0)",
    "torch.arange({n})[:, None] * {b}.sum(0)",
    "torch.arange({n}, dtype={a}.dtype)[:, None] + {b}.sum(0)",
    "torch.linspace(0, 1, {n}, dtype={a}.dtype)[:, None] * {b}.sum(0)",
    "torch.eye({n}, 3, dtype={a}.dtype) + {b}.sum(0)",
    "torch.randn({n}, 3, dtype={a}.dtype) * {b}.sum(0)",
    "torch.rand_like({a}[{m}])",
    "torch.nn.functional.dropout({a}[{m}], 0.5, True)",
    "torch.nn.functional.pad({a}, (0, 0, 0, {n}))",
    "torch.nn.functional.pad({a}, (0, 0, {n}, int(t)), value={f})",
    "torch.cat([{a}, {b}[{b}[:, 0] > 0]])",
    "torch.cat([p * i for i, p in enumerate({a}.split([{s}, len({a}) - {s}]))])",
    (
        "torch.cat([p.cumsum(0) for p in torch.split({a}.repeat_interleave({k}, 0), "
        "({k}).tolist())]) if len({a}) else {a}"
    ),
    (
        "torch.stack([p.sum(0) for p in {a}.repeat_interleave({k}, "
        "0).split(({k}).tolist())]) if len({a}) else {a}"
    ),
    "torch.cat(torch.tensor_split({a}, [{s}])[::-1])",
    "torch.cat({a}.tensor_split(t.clamp(min=1))) if {a}.dim() == 2 else {a}",
    "torch.nn.utils.rnn.pad_sequence([{a}, {b}]).flatten(0, 1) * 2",
    "torch.stack([{a}[i] for i in range(min({n}, len({a})))]) if min({n}, len({a})) else {a}",
    (
        "torch.stack([{a}[i] * i for i in ({m}).nonzero().flatten().tolist()]) if "
        "({m}).any() else {a}"
    ),
    "{a}[torch.tensor([min(1, len({a}) - 1)] * {s}, dtype=torch.long)]",
    "{a}.index_select(0, ({m}).nonzero().flatten())",
    "{a}.index_add(0, ({m}).nonzero().flatten(), {a}[{m}])",
    "{a}.index_copy(0, ({m}).nonzero().flatten(), {a}[{m}] * 2)",
    "torch.zeros(4, 3, dtype={a}.dtype).index_add(0, ({k}), {a})",
    "torch.zeros(4, 3, dtype={a}.dtype).scatter_add(0, ({k})[:, None].expand(-1, 3), {a})",
    "torch.nn.functional.one_hot({k}, 4)[:, :3] * {a}",
    "torch.nn.functional.one_hot({k})[:, :1] * {a}",
    "torch.nn.functional.embedding({k}, w.expand(2, 3, 3).reshape(6, 3)) * {a}",
    "{a} * {n}",
    "{a} + {f}",
    "{a} * {n} + {n}",
    "{a} ** ({n} % 3)",
    "{a} * ({n} > 1)",
    "{a} * {f}",
    "{a} * {a}.sum().item()",
    "{a} / ({a}.norm() + 1)",
    "{a} @ w",
    "torch.addmm({b}.sum(0), {a}, w)",
    "torch.softmax({a} @ {b}.t(), -1) @ {b}",
    "({a} @ {b}.t()) @ {b} * 0.1",
    "{a}.t() @ {a}",
    "torch.einsum('ij,kj->ik', {a}, w)",
    "torch.softmax({a}, 0)",
    "torch.softmax({a}, -1)",
    "torch.log_softmax({a}, 0)",
    "torch.nn.functional.layer_norm({a}, (3,))",
    "torch.nn.functional.normalize({a}, dim=0)",
    "{a} - {a}.mean(0)",
    "{a}.cumsum(0)",
    "{a} + {b}.sum()",
    "torch.cat([{a}, {b}])",
    "torch.cat([{b}[:1], {a}])",
    "{a}.sort(0).values",
    "{a}[{a}[:, 0].argsort()]",
    "{a}.topk(min({n}, len({a})), 0).values",
    "{a}.flip(0)",
    "{a}.t().clone(memory_format=torch.contiguous_format).t()",
    "{a}.clone()",
    "{a}.relu()",
    "{a}.tanh() * {a}",
    "{a}.detach() * 2",
    "{a}.amax(0)[None]",
    "{a}.max(0, keepdim=True).values",
    "{a}.std(0, keepdim=True)",
    "{a}.sum(0, keepdim=True)",
    "{a}.view(-1).view(-1, 3)",
    "{a}.reshape(len({a}) * 3)[:, None] * {b}.sum(0)",
    "{a}.reshape(-1)[: 3 * {s}].reshape(-1, 3)",
    "{a}.unflatten(0, (1, -1))[0]",
    "{a}.expand({n}, *{a}.shape).sum(0)",
    "{a}.repeat({n}, 1)",
    "{a}.roll({n}, 0)",
    "{a}.unfold(0, 1, 1)[..., 0]",
    "{a}.chunk(2)[0]",
    "{a}.tril({n})",
    "{a}.t()[:, : {n}].t()",
    "linear({a})",
    "linear({a}[{m}]).relu()",
    "torch.nn.functional.cross_entropy({a}, ({k}).clamp(max=2)) * {b}",
    "torch.nn.functional.scaled_dot_product_attention({a}[None], {b}[None], {b}[None])[0]",
)
"""Expressions of matrices. ``{s}`` is ``{n}``, but at most the number of rows of ``{a}``."""

INSIDE = (
    "torch.cond({a}.sum() > 0, lambda q: q * 2, lambda q: q.sin(), ({a},))",
    "torch.cond(({m}).any(), lambda q, r: q + r.sum(), lambda q, r: q - r.sum(), ({a}, {b}))",
    "torch.cond(t > 1, lambda q: q @ w, lambda q: q.tanh() * 1, ({a},))",
    "torch.cond({n} > 1, lambda q: q * 2, lambda q: q.cos(), ({a},))",
    "while_loop(lambda i, q: i < t, lambda i, q: (i + 1, q * 0.5), (t * 0, {a}.detach()))[1]",
    "while_loop(lambda q: q.abs().sum() > 1, lambda q: (q * 0.5,), ({a}.detach(),))[0]",
    "scan(lambda s, q: (s + q, s * q), {a}.sum(0) * 0 + 1, {a})[1]",
    "associative_scan(lambda p, q: p * 0.5 + q, {a}, 0, combine_mode='generic')",
    "torch_map(lambda q, r: q.sin() * r.sum(), {a}, {b})",
    "torch.func.vmap(lambda q: q.sin() * q.sum())({a})",
    "torch.func.vmap(lambda q, c: q * c.sum(), in_dims=(0, None))({a}, {b})",
    "torch.func.grad(lambda q: (q ** 3).sum())({a})",
    "torch.func.grad(lambda q: (q[{m}] ** 3).sum())({a})",
    "torch.func.vjp(torch.sin, {a})[1]({a} * 2)[0]",
    "torch.func.vjp(lambda q: q[{m}], {a})[1]({a}[{m}] * 2)[0]",
    "torch.func.jvp(torch.sin, ({a},), ({a} * 2,))[1]",
    "torch.func.jvp(lambda q: q[: {n}], ({a},), ({a} * 2,))[1]",
    "torch.func.vmap(torch.func.grad(lambda q: q.pow(3).sum()))({a})",
    "torch.func.functional_call(layer, {{'weight': w, 'bias': {b}.sum(0)}}, ({a},))",
    "torch.func.functional_call(layer, {{'weight': w * {f}}}, ({a}[{m}],))",
    "checkpoint(lambda q: q[q[:, 0] > 0].sin() * 2, {a}, use_reentrant=False)",
    "checkpoint(lambda q, n: q[:n].exp() * n, {a}, {n}, use_reentrant=False)",
    (
        "checkpoint(lambda q: torch.dropout(q[q[:, 0] > 0].sin(), 0.5, True), {a}, "
        "use_reentrant=False)"
    ),
    "Pick.apply({a})",
    "Scale.apply({a}, {n})",
    "Scale.apply({a}, {f})",
    "inner({a}, t)",
    "inner({a}[{m}], t) * 2",
)
"""Calls of operations that take functions, of Functions, layers and a jitted function."""

WRITES = (
    "{a}[{m}] = {f}",
    "{a}[{m}] = 0.5",
    "{a}[{m}] = {a}[{m}] * 2",
    "{a}[{m}] = {b}.sum(0)",
    "{a}[{m}, 0] = 1.5",
    "{a}[{m}] += {b}.sum(0)",
    "{a}[{m}] *= {n}",
    "{a}[: {n}].mul_(2)",
    "{a}[: {n}] = {b}.sum(0)",
    "{a}[{n} :].zero_()",
    "{a}[: {n}] += {a}[: {n}] * 0.5",
    "{a}.mul_({f})",
    "{a}.add_({n})",
    "{a}.masked_fill_(({m})[:, None], {f})",
    "{a}.masked_scatter_(({m})[:, None], torch.cat([{b}, {a} * 2]))",
    "{a}.index_put_((({m}).nonzero().flatten(),), {b}.sum(0), accumulate=True)",
    "{a}.index_add_(0, ({m}).nonzero().flatten(), {a}[{m}])",
    "{a}.index_fill_(0, ({m}).nonzero().flatten(), {f})",
    "{a}.t()[:, : {n}].add_(1)",
    "{a}.view(-1)[: {n}].mul_({b}.sum())",
    "{a}[{m}].mul_(2)",
    "{a}[({m}).nonzero().flatten()] = 2",
    "{a}.narrow(0, 0, {s}).mul_({n})",
    "{a}.clamp_(-1, {f})",
    "{a}.copy_({b}[:1].sum(0))",
    "{a}.fill_({f})",
    "{a}[:, {n} % 3].zero_()",
)
"""Writes to ``{a}``."""

FLOW = (
    "if {a}.sum() > 0:\n    {v} = {a} * 2\nelse:\n    {v} = {a} - 1",
    "if ({m}).any():\n    {v} = {a}[{m}]\nelse:\n    {v} = {b}",
    "if bool(({m}).all()):\n    {v} = {a} + 1\nelse:\n    {v} = {b} * 2",
    "if {n} > 1:\n    {v} = {a} * 2\nelse:\n    {v} = {b}",
    "if len({a}) == 0:\n    {v} = {b}\nelse:\n    {v} = {a} / len({a})",
    "if {a}.numel() > 3:\n    {v} = {a}.mean(0)[None]\nelse:\n    {v} = {b}",
    "if t == 1:\n    {v} = {a}.exp()\nelif t > 1:\n    {v} = {a} * 3\nelse:\n    {v} = {b}",
    "{v} = {a}\ni = 0\nwhile {v}.abs().sum() > 1 and i < 4:\n    {v} = {v} * 0.5\n    i += 1",
    "{v} = {a}\nfor i in range({n} % 4):\n    {v} = {v} + {b}.sum(0) * i",
    "{v} = {a}\nfor i in c.tolist():\n    {v} = {v} * (i + 1)",
    "{v} = {a}\nfor i in range(int(t)):\n    {v} = torch.cat([{v}, {b}[:1]])",
    "{v} = {a}\nwhile len({v}) > 2:\n    {v} = {v}[1:]",
    "{v} = {a}\nwhile True:\n    {v} = {v} * 0.5\n    if {v}.abs().sum() < 1:\n        break",
    "torch._check({n} >= 0)\n{v} = {a}[: {n}]",
    "if {a}.sum() > 2:\n    return {b}, {n}\n{v} = {a} * 2",
    "if {n} == 0:\n    return {a} * 2, {b}\n{v} = {a} * {n}",
    "if {a}.isnan().any():\n    raise ValueError('nan')\n{v} = {a} * 2",
    "if t > 1:\n    raise ValueError(f'{{t.item()}}')\n{v} = {a} * 2",
    "{v}, {w} = {a}[{m}], {a}[~({m})]",
    "{v} = {a}[: {n}]\n{v}.mul_(2)",
    "{v} = {a}.clone()\n{w} = {v}[: {n}]\n{w}.mul_({f})",
    "{v} = {a}.clone()\n{w} = {v}.view(-1)\n{v}[{m}] = 2\n{w} = {w}.view(-1, 3)",
    "{v} = {a}[{m}]\n{w} = {v}[:1]\n{w}.add_(1)",
    "{v} = {a}[{m}]\n{w} = {v}.t()\n{w}.mul_(2)\n{w} = {w}.t()",
    "{v} = {a}.repeat_interleave({k}, 0)\n{w} = {v}[1:]\n{w}.zero_()",
    "{v}, {w} = {a}.split([{s}, len({a}) - {s}])",
    "{v}, {w} = {a}.split([{s}, len({a}) - {s}])\n{w}.mul_(2)",
    "{v} = {a}.sin()\n{v}[{v}[:, 0] > 0] = {v}[{v}[:, 0] > 0] * 2\n{w} = {v}[: {n}]",
    "with torch.no_grad():\n    {v} = {a}[{m}]",
    "with torch.no_grad():\n    n1 = ({m}).sum().item()\n{v} = {a}[:n1]",
    "{v} = {a}\nfor q in {b}:\n    {v} = {v} + q",
    (
        "{v} = torch.zeros_like({a})\n"
        "for i, z in enumerate(({m}).tolist()):\n"
        "    if z:\n"
        "        {v}[i] = {a}[i] * 2"
    ),
    "parts = [q for q in {a} if q.sum() > 0]\n{v} = torch.stack(parts) if parts else {b}",
    "best = max({a}.detach().abs().sum(1).tolist(), default=0.0)\n{v} = {a} * best",
    (
        "seen = {{}}\n"
        "for i, key in enumerate(({k}).tolist()):\n"
        "    seen.setdefault(key, []).append({a}[i])\n"
        "{v} = torch.cat([torch.stack(z) for z in seen.values()]) if seen else {b}"
    ),
)
"""Statements that make ``{v}``, some of them ``{w}``, too."""

HANDLED = (
    "assert {n} >= 0\n{v} = {a} * {n}",
    "assert {a}.sum() > -99, 'small'\n{v} = {a} + 1",
    "assert {n} != 1, 'one'\n{v} = {a} + 1",
    "assert ({m}).any()\n{v} = {a}[{m}]",
    "torch._assert({n} >= 0, 'negative')\n{v} = {a} + {n}",
    "try:\n    {v} = {a}[{n}][None]\nexcept IndexError:\n    {v} = {b} * 2",
    "try:\n    {v} = {a} + {b}[{b}[:, 0] > 0]\nexcept RuntimeError:\n    {v} = {a} * 3",
    "try:\n    {v} = {a}.view({n}, -1, 3)[0]\nexcept RuntimeError:\n    {v} = {a} * 3",
    "try:\n    {v} = {a}.amax(0)[None]\nexcept (IndexError, RuntimeError):\n    {v} = {b}",
    "try:\n    assert {n} < 2\n    {v} = {a} + 1\nexcept AssertionError:\n    {v} = {a} * 3",
    (
        "try:\n"
        "    {v} = {a} * (1 / {n})\n"
        "except ZeroDivisionError:\n"
        "    {v} = {b}\n"
        "finally:\n"
        "    n0 = 1"
    ),
    (
        "try:\n"
        "    if {a}.sum() > 0:\n"
        "        raise ValueError\n"
        "    {v} = {a} + 1\n"
        "except ValueError:\n"
        "    {v} = {a} * 3"
    ),
    "order = sorted(range(len({a})), key={a}[:, 0].tolist().__getitem__)\n{v} = {a}[order]",
)
"""Such statements that assert, handle an error, or sort, which torch.compile alone gets wrong."""

RETURNED = (
    "{n}",
    "{f}",
    "({k}).tolist()",
    "({m}).nonzero()",
    "{a}.sum()",
    "bool({a}.sum() > 0)",
    "len({a})",
    "torch.unique({k})",
    "{a}[{m}]",
    "{a}[: {n}]",
    "({m}, {k})",
)
"""Results of programs besides matrices."""

FUNCTIONS = """\
class Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        where = (x[:, 0] > 0).nonzero().flatten()
        ctx.save_for_backward(where)
        ctx.rows = len(x)
        return x[where] * 2

    @staticmethod
    def backward(ctx, grad):
        (where,) = ctx.saved_tensors
        return grad.new_zeros(ctx.rows, 3).index_add(0, where, grad * 2)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.n = n
        return x * n

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.n, None
"""
"""Functions of autograd that programs apply."""

LAYERS = """\
def inside(x, t):
    if x.sum() > 0:
        return x[: int(t)] * 2
    return x * x[x[:, 0] < 0].sum()


class Net(torch.nn.Module):
    def __init__(self, wrap):
        super().__init__()
        torch.manual_seed(3)
        self.linear = torch.nn.Linear(3, 3, dtype=DTYPE)
        self.inner = wrap(inside)

    def forward(self, x, w, m, c, t):
        linear = layer = self.linear
        inner = self.inner
"""
"""First lines of a program with layers, which calls a function that is compiled by itself."""
