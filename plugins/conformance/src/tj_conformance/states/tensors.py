"""Parts of modules that are tensors: buffers, caches, random numbers."""

from __future__ import annotations

from collections.abc import Mapping

from tj_conformance.states.part import Part

__all__ = ["TENSORS"]

TENSORS: Mapping[str, Part] = {
    "buffer": Part(
        """
self.register_buffer('u#', torch.ones(4))
""",
        """
x = x + self.u#
""",
        """
m.u# = torch.randn(4)
m.u# = None
m.u#.zero_()
m.u#.add_(1)
del m.u#
m.u# = torch.randn(1)
m.u# = torch.randn(())
m.u# = torch.ones(4, dtype=torch.float64)
m.u# = torch.randn(4, 4)[:, 1]
m.u#.requires_grad_()
m.u#.data = torch.randn(4)
m.u#.resize_(4).fill_(0.5)
m._buffers['u#'] = torch.zeros(4)
m.u# = m.u#.expand(3, 4)
m.u# = torch.randn(3, 1)
del m.u#; m.u# = 2.0
del m.u#; m.u# = nn.Parameter(torch.ones(4))
m.u#.set_(torch.randn(4))
m._non_persistent_buffers_set.add('u#')
m.u# = torch.arange(4)
object.__setattr__(m, 'u#', torch.zeros(4))
m.__dict__.pop('u#')
""",
    ),
    "written buffer": Part(
        """
self.register_buffer('u#', torch.zeros(4), persistent=False)
""",
        """
self.u#.mul_(0.9).add_(x.detach().sum(0), alpha=0.1)
x = x + self.u#
""",
        """
m.u# = torch.randn(4)
m.u#.zero_()
del m.u#
m.u# = torch.ones(4, dtype=torch.float64)
m.u# = torch.randn(4, 4)[:, 1]
m.u#.requires_grad_()
m.u#.data = torch.randn(4)
m.u# = torch.zeros(1, 4).expand(3, 4)
m.u# = torch.zeros(3, 4)
m._buffers['u#'] = torch.zeros(4)
""",
    ),
    "replaced buffer": Part(
        """
self.register_buffer('u#', torch.zeros(4))
""",
        """
self.u# = self.u# * 0.9 + x.detach().sum(0)
x = x + self.u#
""",
        """
m.u# = torch.randn(4)
m.u#.zero_()
del m.u#
m.u# = None
w.kept = m.u#
m.u# = w.kept
m.u# = torch.ones(4, dtype=torch.float64)
""",
    ),
    "view of a buffer": Part(
        """
self.register_buffer('u#', torch.zeros(3, 4))
self.v# = self.u#[1]
""",
        """
self.u#.add_(1)
x = x + self.v# + self.u#[0]
""",
        """
m.u# = torch.zeros(3, 4)
m.v# = m.u#[1]
m.v# = m.u#[0]
m.v# = torch.ones(4)
m.v# = m.u#[1].clone()
m.u# = m.u#.clone()
m.v#.zero_()
m.v# = m.u#[:, :1].reshape(-1)[:1]
m.v# = m.u#
""",
    ),
    "plain tensor": Part(
        """
self.t# = torch.randn(4)
""",
        """
x = x * self.t#
""",
        """
m.t# = torch.randn(4)
m.t# = torch.randn(1)
m.t# = torch.randn(4, 4)[:, 0]
m.t# = torch.randn(9)[1:5]
m.t#.requires_grad_()
m.t# = m.t#.double()
m.t# = 3
m.t# = nn.Parameter(torch.randn(4))
m.t#.resize_(1)
m.t# = torch.randn(4).requires_grad_().sin()
m.t#.mul_(2)
m.t# = m.t#.bfloat16()
m.t# = w.x
del m.t#
m.t# = torch.tensor([1, 2, 3, 4])
m.t# = torch.randn(4).conj()
m.t# = torch.randn(4, dtype=torch.complex64)
m.t#.unsqueeze_(0)
m.t# = torch.randn(1).expand(4)
""",
    ),
    "two names": Part(
        """
self.a# = torch.ones(4)
self.c# = self.a#
""",
        """
self.a#.add_(1)
x = x + self.c#
x = x * 2 if self.a# is self.c# else x
""",
        """
m.c# = torch.ones(4)
m.c# = m.a#
m.a# = m.a#.clone()
m.c# = m.a#.view(4)
m.c# = m.a#[:1]
m.a#.requires_grad_()
m.c# = m.a#.view(2, 2).reshape(4)
""",
    ),
    "cached tensor": Part(
        """
self.cache# = None
""",
        """
if self.cache# is None or self.cache#.shape != x.shape: self.cache# = x.detach() * 2
x = x + self.cache#
""",
        """
m.cache# = None
m.cache# = torch.ones(3, 4)
m.cache#.zero_()
del m.cache#
m.cache# = m.cache#.t().contiguous().t()
m.cache# = torch.ones(3, 4, requires_grad=True)
""",
    ),
    "random numbers": Part(
        """
self.g# = torch.Generator().manual_seed(1)
""",
        """
x = x + torch.rand(4)
x = x * torch.rand(4, generator=self.g#)
""",
        """
m.g#.manual_seed(2)
m.g# = torch.Generator().manual_seed(3)
m.g# = None
torch.manual_seed(5)
m.g#.set_state(torch.Generator().manual_seed(4).get_state())
""",
    ),
}
"""Parts by name; ``#`` stands for the number of the part in its program."""
