"""Every made-up program that was ever found to differ from eager, as short as it goes."""

from __future__ import annotations

from collections.abc import Mapping

from tj_torch.conformance.programs import TextProgram

__all__ = ["FOUND"]

FOUND: Mapping[str, TextProgram] = {
    "in-place view that keeps the shape was removed": TextProgram(
        ("p0 = torch.arange(1., 9).reshape(2, 2, 2)", "a = p0.view(-1)", "b = p0[..., ::2]"),
        ("a", "b"),
        ("p0",),
        ("t = b.reshape(-1)", "t.transpose_(0, -1)"),
        "[a, t]",
    ),
    "data was read again after the call": TextProgram(
        ("a = torch.arange(1., 7).reshape(2, 3)",),
        ("a",),
        (),
        ("t = a.data", "t.mul_(2)"),
        "[t, t]",
    ),
    "attribute view was made again outside of no_grad": TextProgram(
        ("a = torch.arange(1., 7).reshape(2, 3).requires_grad_()",),
        ("a",),
        (),
        ("with torch.no_grad():", "    t = a.T"),
        "t",
    ),
    "data that is replaced bumped the version": TextProgram(
        ("a = torch.arange(1., 7)", "b = torch.arange(1., 4)"),
        ("a", "b"),
        (),
        ("a.data = b",),
        "[a * 2]",
    ),
    "error of a view that nobody uses was lost": TextProgram(
        ("p = torch.arange(1., 7).reshape(2, 1, 3)", "a = p[..., ::2]"),
        ("a",),
        ("p",),
        ("a.mul_(2)", "t = a.view(-1)"),
        "[]",
    ),
    "grad mode that is left off was forgotten": TextProgram(
        ("a = torch.arange(1., 7).requires_grad_()",),
        ("a",),
        (),
        ("t = a * 2", "torch.set_grad_enabled(False)"),
        "t",
    ),
    "view that cannot be made was dropped": TextProgram(
        ("p = torch.arange(1., 7).reshape(2, 1, 3)", "a = p[..., :2]"),
        ("a",),
        ("p",),
        ("t = a.view(-1)",),
        "[]",
    ),
    "detach_ of a view was allowed": TextProgram(
        ("p = torch.arange(1., 7)", "a = p[1:]"), ("a",), ("p",), ("a.detach_()",), "[]"
    ),
    "gradient around a call that nobody knows": TextProgram(
        ("p = torch.arange(1., 7).requires_grad_()",),
        ("p",),
        ("p",),
        ("t = p * 2", "torch._foreach_mul_([t, t], 3)"),
        "t",
    ),
    "error in the middle lost the write before it": TextProgram(
        ("p = torch.arange(1, 7).to(torch.complex64)", "a = p.view(2, 3)"),
        ("a",),
        ("p",),
        ("a[0] = 5", "a.bernoulli_(0.5)"),
        "a",
    ),
    "gradients of views were added up in another order": TextProgram(
        ("a = torch.arange(1., 7).reshape(2, 3).requires_grad_()",),
        ("a",),
        (),
        ("t = a.view(-1)", "s = a.view(-1)", "u = a.tanh()"),
        "[t, s, u]",
    ),
    "gradients that nobody needs were on in parts of calls": TextProgram(
        ("p = torch.arange(1., 7).requires_grad_()",),
        ("p",),
        ("p",),
        ("t = p * 2", "s = t.mul_(3)", "s.uniform_()", "with torch.no_grad():", "    u = p * 1"),
        "[p, u]",
    ),
    "leaf was written that came to require a gradient as a view": TextProgram(
        (
            "p = torch.ones(()).requires_grad_()",
            "b = p * 1",
            "a = torch.arange(1., 7).reshape(2, 3)",
        ),
        ("a", "b"),
        ("p", "b"),
        ("t = a.t()", "a.mul_(b)", "t.mul_(2)"),
        "t",
    ),
    "view of an argument was saved for the backward, and then written": TextProgram(
        (
            "p = torch.arange(1., 2).requires_grad_()",
            "q = p * 1",
            "a = q.view(-1)",
            "b = q.view(-1)",
        ),
        ("a", "b"),
        ("p", "q"),
        ("b.scatter_(0, torch.zeros_like(b[:1], dtype=torch.int64), 9)",),
        "[]",
    ),
    "two calls that autograd records had one name for their functions": TextProgram(
        (
            "p = torch.arange(1, 3).to(torch.complex64).requires_grad_()",
            "a = p * 1",
        ),
        ("a",),
        ("p", "a"),
        ("a.mul_(a)", "a.mul_(a)"),
        "a",
    ),
    "empty tensor had other strides than a kernel makes": TextProgram(
        ("p = torch.arange(1, 1).reshape(0, 3).to(torch.float32)", "a = p.unsqueeze(0)"),
        ("a",),
        (),
        ("t = torch.rand_like(a)", "t.add_(1)"),
        "t",
    ),
    "as_strided was taken for a function of values, and written": TextProgram(
        ("p = torch.arange(10.)", "a = p[2:]"),
        ("a",),
        ("p",),
        ("t = a.as_strided((2,), (1,), 3)", "t.mul_(2)"),
        "a * 1",
    ),
    "as_strided was taken for a function of values, and differentiated": TextProgram(
        ("p = torch.arange(10.).requires_grad_()", "q = p * 1", "a = q[2:]"),
        ("a",),
        ("p",),
        ("t = a.as_strided((2,), (1,), 3)",),
        "t * a[:2]",
    ),
    "as_strided led out of the view that it was made from": TextProgram(
        ("a = torch.arange(10.)",),
        ("a",),
        (),
        ("t = a + 1", "s = t[2:6].as_strided((3,), (2,))", "s.mul_(2)"),
        "[t, s]",
    ),
    "change of metadata that autograd refuses was lost": TextProgram(
        ("a = torch.arange(1., 7).reshape(2, 3).requires_grad_()",),
        ("a",),
        (),
        ("t = a.view(-1)", "t.transpose_(0, -1)"),
        "[]",
    ),
    "one of several views was used after another was written": TextProgram(
        (
            "p = torch.arange(1., 7).reshape(2, 3).requires_grad_()",
            "a = p * 1",
            "b = a.unbind(0)[0]",
        ),
        ("a", "b"),
        ("p",),
        ("a.add_(1)", "t = b.view(-1)"),
        "t",
    ),
    "random numbers were drawn for a view that autograd lets nobody write": TextProgram(
        (
            "p = torch.arange(1., 7).reshape(2, 3).requires_grad_()",
            "q = p * 1",
            "a = q.unbind(0)[0]",
        ),
        ("a",),
        ("p", "q"),
        ("a.uniform_()",),
        "[]",
    ),
    "result that autograd saves was taken for written": TextProgram(
        ("a = torch.arange(1., 7).requires_grad_()",),
        ("a",),
        (),
        ("t = a * 2", "t.add_(1)", "t.relu_()"),
        "t",
    ),
    "result that autograd saves, of a size of one, was taken for written": TextProgram(
        ("a = torch.arange(1., 4).reshape(1, 3).requires_grad_()",),
        ("a",),
        (),
        ("t = a * 2", "t.add_(1)", "t.relu_()"),
        "t",
    ),
    "gradients of two parts of a value were one": TextProgram(
        ("a = torch.arange(1., 7).requires_grad_()",),
        ("a",),
        (),
        (),
        "a[:4] + a[2:]",
    ),
    "view of what was copied needed a gradient in a body": TextProgram(
        ("p = torch.arange(1., 7).reshape(2, 3).requires_grad_()", "a = p[..., :2]"),
        ("a",),
        ("p",),
        ("t = a.t()", "with torch.no_grad():", "    t.add_(1)"),
        "a * 2",
    ),
    "argument that shares memory kept its shape": TextProgram(
        ("p = torch.arange(1., 7)", "a = p.view(2, 3)", "b = a[1:]"),
        ("a", "b"),
        ("p",),
        ("b.t_()", "a.mul_(2)"),
        "[]",
    ),
    "strides of a size of one were those of tensors without data": TextProgram(
        ("p = torch.arange(1., 4).reshape(1, 3)", "a = p.t()"),
        ("a",),
        (),
        ("t = a * 2", "t.add_(a)"),
        "t",
    ),
    "one of several views was returned after their memory was written": TextProgram(
        ("a = torch.arange(1., 7).reshape(2, 3).requires_grad_()",),
        ("a",),
        (),
        ("t = a * 2", "s = t.split(1)[0]", "t.mul_(2)"),
        "s",
    ),
    "view from no_grad was used after its memory was written": TextProgram(
        ("a = torch.arange(1., 7).reshape(2, 3).requires_grad_()",),
        ("a",),
        (),
        ("t = a * 2", "with torch.no_grad():", "    s = t.view(-1)", "t.mul_(2)"),
        "s * 2",
    ),
    "writes were counted after a view was made that came after them": TextProgram(
        ("a = torch.arange(1., 7).reshape(2, 3).requires_grad_()",),
        ("a",),
        (),
        ("with torch.no_grad():", "    a.add_(1)", "    a.add_(1)", "    t = a.view(-1)"),
        "t",
    ),
}
"""By what was wrong."""
