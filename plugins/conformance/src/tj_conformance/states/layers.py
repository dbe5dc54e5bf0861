"""Parts of modules that are layers, and containers of layers."""

from __future__ import annotations

from collections.abc import Mapping

from tj_conformance.states.part import Part

__all__ = ["LAYERS"]

_LINEAR = """
m.l#.requires_grad_(False)
m.l#.requires_grad_(True)
m.l#.weight.requires_grad_(False)
m.l#.bias.requires_grad_(False)
m.l#.weight.requires_grad_(True)
m.l# = nn.Linear(4, 4)
m.l#.weight = nn.Parameter(torch.randn(4, 4))
m.l#.bias = None
m.l#.bias = nn.Parameter(torch.ones(4))
m.l#.weight.data = torch.randn(4, 4)
m.l#.weight.data = torch.randn(4, 4).t()
m.l#.weight.data = torch.randn(5, 8)[1:, ::2]
m.l#.weight.data = torch.randn(1, 4).expand(4, 4)
m.l#.weight = nn.Parameter(m.l#.weight.detach().t())
w.flat = torch.randn(20); m.l#.weight.data = w.flat[:16].view(4, 4); m.l#.bias.data = w.flat[16:]
m.l#.weight.data.mul_(2)
m.l#.weight.data.copy_(torch.randn(4, 4))
with torch.no_grad(): m.l#.weight.mul_(0.5)
nn.init.ones_(m.l#.weight)
nn.init.eye_(m.l#.weight)
m.l#.forward = types.MethodType(lambda self, x: x @ self.weight, m.l#)
del m.l#.forward
m.l#.forward = lambda x: x + 1
m.l#.__class__ = Other
m.l#.__class__ = nn.Linear
w.h.append(m.l#.register_forward_hook(fwd_hook))
w.h.append(m.l#.register_forward_hook(fwd_look))
w.h.append(m.l#.register_forward_pre_hook(pre_hook))
w.h.append(m.l#.register_full_backward_hook(bwd_hook))
w.h.append(m.l#.register_full_backward_pre_hook(bwd_pre))
w.h.append(m.l#.weight.register_hook(t_hook))
w.h.append(m.l#.weight.register_post_accumulate_grad_hook(acc_hook))
w.h.pop().remove()
w.h.pop(0).remove()
m.l# = nn.Identity()
m.l# = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
del m.l#
m.l# = None
nn.utils.parametrizations.weight_norm(m.l#)
nn.utils.parametrizations.spectral_norm(m.l#)
P.register_parametrization(m.l#, 'weight', Scaled())
P.remove_parametrizations(m.l#, 'weight')
P.remove_parametrizations(m.l#, 'weight', leave_parametrized=False)
nn.utils.weight_norm(m.l#)
nn.utils.remove_weight_norm(m.l#)
nn.utils.spectral_norm(m.l#)
nn.utils.parametrizations.orthogonal(m.l#)
m.l#.double()
m.l#.weight.data = m.l#.weight.data.double()
m.l#.weight.grad = None
m.l#.weight.grad = torch.ones(4, 4)
m.l#.weight.grad.zero_()
m.l#.zero_grad()
m.l#.zero_grad(set_to_none=False)
m.l# = J(m.l#)
m.l#.compile(backend=w.backend)
m.l#.weight.data.fill_(float('nan'))
m.l#.weight.extra = 3
m.l#.register_parameter('bias', None)
m.l# = copy.deepcopy(m.l#)
m._modules['l#'] = nn.Linear(4, 4)
m.l#._parameters['weight'] = nn.Parameter(torch.eye(4))
object.__setattr__(m, 'l#', nn.Tanh())
m.l#.__dict__['weight'] = torch.eye(4)
m.l#.weight = nn.Parameter(torch.randn(3, 4)); m.l#.bias = None
m.l#.add_module('sub', nn.Linear(4, 4))
m.l#.weight.data.resize_(4, 4)
m.l#.weight.data.set_(torch.randn(4, 4))
m.l#.weight.data = m.l#.weight.data[1:]
m.l#.load_state_dict({'weight': torch.randn(4, 4), 'bias': torch.zeros(4)})
m.l#.load_state_dict({'weight': torch.randn(4, 4), 'bias': torch.zeros(4)}, assign=True)
m.l#.weight.retain_grad()
m.l#.weight.detach_()
torch.nn.utils.vector_to_parameters(torch.randn(20), m.l#.parameters())
m.l#.train(not m.l#.training)
torch.nn.utils.prune.l1_unstructured(m.l#, 'weight', 0.5)
torch.nn.utils.prune.remove(m.l#, 'weight')
m.l#.weight = nn.Parameter(torch.randn(4, 4), requires_grad=False)
m.l#.weight.data = torch.empty(0)
"""
"""Changes of a layer and of its parameters."""

LAYERS: Mapping[str, Part] = {
    "linear": Part(
        """
self.l# = nn.Linear(4, 4)
""",
        """
x = self.l#(x)
""",
        _LINEAR,
    ),
    "linear by hand": Part(
        """
self.l# = nn.Linear(4, 4)
""",
        """
x = F.linear(x, self.l#.weight, self.l#.bias)
""",
        _LINEAR,
    ),
    "shared layer": Part(
        """
self.l# = nn.Linear(4, 4)
self.s# = self.l#
""",
        """
x = self.s#(self.l#(x))
""",
        _LINEAR
        + """
m.s# = nn.Linear(4, 4)
m.s# = m.l#
m.l#, m.s# = m.s#, m.l#
m.s#.weight = m.l#.weight
""",
    ),
    "tied layers": Part(
        """
self.l# = nn.Linear(4, 4)
self.s# = nn.Linear(4, 4, bias=False)
self.s#.weight = self.l#.weight
""",
        """
x = self.l#(x).tanh() + self.s#(x)
""",
        _LINEAR
        + """
m.s#.weight = nn.Parameter(m.s#.weight.detach().clone())
m.l#.weight = m.s#.weight
m.s# = m.l#
m.l#, m.s# = m.s#, m.l#
m.s#.weight = nn.Parameter(m.l#.weight.data)
m.s#.weight = nn.Parameter(m.l#.weight.data.t())
""",
    ),
    "batch norm": Part(
        """
self.b# = nn.BatchNorm1d(4)
""",
        """
x = self.b#(x)
""",
        """
m.b#.eval()
m.b#.train()
m.b#.momentum = 0.5
m.b#.momentum = None
m.b#.track_running_stats = False
m.b#.running_mean = None; m.b#.running_var = None
m.b#.reset_running_stats()
m.b#.running_mean = torch.ones(4)
m.b#.eps = 0.1
m.b#.eps = 0
m.b#.num_batches_tracked.zero_()
m.b#.num_batches_tracked = None
m.b#.weight = None
m.b# = nn.LayerNorm(4)
m.b# = nn.BatchNorm1d(4, affine=False)
m.b# = nn.SyncBatchNorm(4)
m.b#.running_var.data = torch.ones(4)
m.b#.running_mean = m.b#.running_mean.double()
m.b#.requires_grad_(False)
m.b# = J(m.b#)
m.b#.training = False
m.b#.running_mean.fill_(3)
m.b#.running_mean = m.b#.running_var
m.b#.double()
m.b#._buffers['running_mean'] = torch.ones(4)
del m.b#.running_mean
m.b#.affine = False
""",
    ),
    "layer norm": Part(
        """
self.n# = nn.LayerNorm(4)
""",
        """
x = self.n#(x)
""",
        """
m.n#.eps = 0.5
m.n#.eps = 0.0
m.n#.weight = None
m.n#.bias = None
m.n#.normalized_shape = (1,)
m.n#.normalized_shape = [4]
m.n# = nn.RMSNorm(4)
m.n#.double()
m.n#.bfloat16()
m.n#.weight.data.mul_(3)
m.n#.elementwise_affine = False
m.n#.weight = m.n#.bias
m.n# = J(m.n#)
""",
    ),
    "dropout": Part(
        """
self.d# = nn.Dropout(0.5)
""",
        """
x = self.d#(x)
""",
        """
m.d#.p = 0.0
m.d#.p = 1.0
m.d#.p = 0.3
m.d#.p = 0
m.d#.p = 1
m.d#.p = 2.0
m.d#.inplace = True
m.d#.inplace = False
m.d#.eval()
m.d#.train()
m.d# = nn.AlphaDropout(0.2)
m.d#.training = 0
m.d#.training = None
m.d#.train(m.training)
m.d#.p = True
""",
    ),
    "embedding": Part(
        """
self.e# = nn.Embedding(5, 4)
""",
        """
x = x + self.e#(torch.arange(x.shape[0]) % 5)
""",
        """
m.e#.padding_idx = 1
m.e#.max_norm = 0.5
m.e#.max_norm = None
m.e#.scale_grad_by_freq = True
m.e#.norm_type = 1.0
m.e#.weight.requires_grad_(False)
m.e# = nn.Embedding(6, 4)
m.e#.weight.data = torch.randn(7, 4)
m.e# = nn.Embedding.from_pretrained(torch.eye(5)[:, :4])
m.e#.sparse = True
m.e#.weight = nn.Parameter(torch.randn(5, 4))
m.e#.padding_idx = None
m.e#.weight.data.zero_()
m.e#.padding_idx = 0
""",
    ),
    "module list": Part(
        """
self.ml# = nn.ModuleList([nn.Linear(4, 4), nn.ReLU()])
""",
        """
for l in self.ml#: x = l(x)
""",
        """
m.ml#.append(nn.Linear(4, 4))
m.ml#.append(nn.Tanh())
m.ml#.pop(0)
m.ml#.insert(0, nn.Linear(4, 4))
m.ml#[0] = nn.Linear(4, 4)
m.ml#[0], m.ml#[1] = m.ml#[1], m.ml#[0]
m.ml# = nn.ModuleList(reversed(m.ml#))
m.ml#.append(m.ml#[0])
m.ml#[0].requires_grad_(False)
m.ml# = nn.ModuleList()
m.ml#[0] = J(m.ml#[0])
m.ml# = [nn.Tanh()]
m.ml#[0].eval()
del m.ml#[0]
m.ml#[-1].register_forward_hook(fwd_hook)
m.ml#.extend([nn.Linear(4, 4), nn.Sigmoid()])
m.ml#[0].weight = nn.Parameter(torch.eye(4))
""",
    ),
    "module dict": Part(
        """
self.md# = nn.ModuleDict({'a': nn.Linear(4, 4), 'b': nn.Tanh()})
""",
        """
for k, l in self.md#.items(): x = l(x) + len(k)
if 'c' in self.md#: x = self.md#['c'](x)
""",
        """
m.md#['c'] = nn.Linear(4, 4)
m.md#.pop('a')
m.md#['aa'] = nn.Linear(4, 4)
m.md#['a'] = nn.ReLU()
a = m.md#.pop('a'); m.md#['a'] = a
m.md#.clear()
m.md#.update({'b': nn.Sigmoid(), 'dd': nn.Identity()})
del m.md#['b']
m.md#['b'] = m.md#['a']
m.md#._modules.move_to_end('a')
m.md# = {'c': nn.Tanh()}
""",
    ),
    "sequence": Part(
        """
self.sq# = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
""",
        """
x = self.sq#(x)
""",
        """
m.sq#[1] = nn.Tanh()
m.sq#.append(nn.Tanh())
m.sq#.pop(0)
del m.sq#[1]
m.sq#[0], m.sq#[2] = m.sq#[2], m.sq#[0]
m.sq#[0].weight = m.sq#[2].weight
m.sq# = m.sq#[:1]
m.sq#[0] = J(m.sq#[0])
m.sq# = J(m.sq#)
m.sq#.requires_grad_(False)
m.sq#[2].requires_grad_(False)
m.sq#.insert(1, nn.Sigmoid())
m.sq#.register_forward_pre_hook(pre_hook)
m.sq#.forward = lambda x: x * 2
del m.sq#.forward
m.sq#.eval()
m.sq#[1].inplace = True
m.sq#.train(False); m.train()
m.sq#.compile(backend=w.backend)
""",
    ),
    "parameter list": Part(
        """
self.pl# = nn.ParameterList([torch.ones(4), torch.full((4,), 2.0)])
""",
        """
for p in self.pl#: x = x * p
""",
        """
m.pl#.append(torch.randn(4))
m.pl#[0] = torch.randn(4)
m.pl#[0].requires_grad_(False)
m.pl#.append(m.pl#[0])
m.pl# = nn.ParameterList(reversed(list(m.pl#)))
m.pl#.extend([torch.randn(4)])
m.pl#[1].data.mul_(2)
m.pl# = [2.0]
m.pl#[0] = nn.Parameter(torch.ones(1))
m.pl#.pop()
m.pl#[0] = 2.5
""",
    ),
    "parameter dict": Part(
        """
self.pd# = nn.ParameterDict({'a': torch.ones(4), 'b': torch.full((4,), 2.0)})
""",
        """
for k, p in self.pd#.items(): x = x * p + len(k)
""",
        """
m.pd#['aa'] = torch.randn(4)
m.pd#.pop('a')
m.pd#['a'] = torch.randn(4)
m.pd#['a'].requires_grad_(False)
m.pd#['b'] = m.pd#['a']
m.pd#.update({'c': torch.randn(4)})
m.pd#.clear()
p = m.pd#.pop('a'); m.pd#['a'] = p
m.pd#['a'] = 2.0
del m.pd#['b']
m.pd#.setdefault('z')
""",
    ),
    "equal layers": Part(
        """
self.ls# = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(5)])
""",
        """
for l in self.ls#: x = l(x) + x
""",
        """
m.ls#[2][0].requires_grad_(False)
m.ls#[3][1] = nn.ReLU()
m.ls#[1].eval()
m.ls#[4] = m.ls#[0]
m.ls#[2][0].weight = m.ls#[1][0].weight
m.ls#[2][0].bias = None
m.ls#.append(nn.Tanh())
m.ls#[0].forward = lambda x: x
m.ls#[3][0].weight.data = torch.randn(4, 4).t()
m.ls#[2].register_forward_hook(fwd_hook)
m.ls#[1][0].weight.register_hook(t_hook)
del m.ls#[2]
m.ls#[1], m.ls#[2] = m.ls#[2], m.ls#[1]
m.ls#[3][0].double()
m.ls#[2] = J(m.ls#[2])
m.ls#[4][0].weight.data.mul_(2)
m.ls#[4][0].weight = nn.Parameter(torch.eye(4))
P.register_parametrization(m.ls#[2][0], 'weight', Scaled())
m.ls#[1][0].__class__ = Other
""",
    ),
    "facts of parameters": Part(
        """
self.l# = nn.Linear(4, 4)
""",
        """
p = self.l#.weight
x = x + (1 if p.requires_grad else 2) + (3 if p.grad is None else 4)
x = x + p.dim() + p.shape[0]
x = x @ self.l#.weight.to(x.dtype).t() * (2 if self.l#.weight.is_contiguous() else 1)
""",
        _LINEAR,
    ),
    "all parameters": Part(
        """
self.l# = nn.Linear(4, 4)
self.n# = nn.LayerNorm(4)
""",
        """
x = self.n#(self.l#(x))
for n, p in self.named_parameters(): x = x + p.sum() * 0.01 + len(n) * 0.1
""",
        _LINEAR
        + """
m.n# = nn.Identity()
m.z# = nn.Linear(4, 1)
m.z# = nn.Parameter(torch.ones(2))
m.n#.weight = m.n#.bias
""",
    ),
    "children": Part(
        """
self.l# = nn.Linear(4, 4)
self.n# = nn.Tanh()
""",
        """
for c in (self.l#, self.n#): x = c(x) if isinstance(c, nn.Module) else x
x = x + len(list(self.children())) + sum(c.training for c in self.modules()) * 0.1
""",
        _LINEAR
        + """
m.n# = nn.Identity()
m.z# = nn.Linear(4, 1)
m.n#.eval()
del m.n#
m.z# = None
""",
    ),
    "modes": Part(
        """
self.dd# = nn.Dropout(0.5)
""",
        """
x = F.dropout(x, 0.5, self.training)
x = self.dd#(x)
""",
        """
m.dd#.eval()
m.dd#.train()
m.training = not m.training
m.eval()
m.train()
m.training = 1
m.training = 0
""",
    ),
}
"""Parts by name; ``#`` stands for the number of the part in its program."""
