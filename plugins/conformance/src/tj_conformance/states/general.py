"""Changes between calls of any module: of its mode, types, state, hooks and optimizer."""

from __future__ import annotations

__all__ = ["CHANGES"]

CHANGES = """
m.train()
m.eval()
m.train(not m.training)
m.requires_grad_(False)
m.requires_grad_(True)
m.double()
m.float()
m.bfloat16()
m.half()
m.to(torch.float32)
sd = {k: v * 0.5 for k, v in m.state_dict().items()}; m.load_state_dict(sd)
sd = {k: v * 0.5 for k, v in m.state_dict().items()}; m.load_state_dict(sd, assign=True)
sd = copy.deepcopy(m.state_dict()); m.load_state_dict(sd, assign=True)
m.load_state_dict({k: torch.ones_like(v) for k, v in m.state_dict().items()}, strict=False)
for p in m.parameters(): p.grad = None
m.zero_grad(set_to_none=False)
m.zero_grad()
for p in m.parameters(): p.grad = torch.ones_like(p)
for p in m.parameters(): p.data = p.data.clone()
for p in m.parameters(): p.data.mul_(0.5)
with torch.no_grad(): [p.add_(0.1) for p in m.parameters()]
for b in m.buffers(): b.fill_(1)
w.h.append(m.register_forward_hook(fwd_hook))
w.h.append(m.register_forward_hook(fwd_look))
w.h.append(m.register_forward_pre_hook(lambda s, a: (a[0] * 2, *a[1:])))
w.h.append(m.register_full_backward_hook(bwd_hook))
w.h.append(m.register_full_backward_pre_hook(bwd_pre))
w.h.pop().remove()
w.h.append(nn.modules.module.register_module_forward_hook(fwd_look))
w.h.append(nn.modules.module.register_module_forward_pre_hook(lambda s, a: LOG.append('g')))
w.h.append(nn.modules.module.register_module_full_backward_hook(lambda s, a, b: LOG.append('gb')))
w.copy(copy.deepcopy)
w.m = copy.deepcopy(w.m); w.again()
w.copy(lambda m: pickle.loads(pickle.dumps(m)))
w.again()
J(m)(torch.ones(2, 4))
m.apply(lambda s: nn.init.ones_(s.weight) if isinstance(s, nn.Linear) else None)
m.forward = types.MethodType(lambda self, x, y=None: x * 2, m)
m.forward = types.MethodType(Net.forward, m)
del m.forward
Net.forward = Net.forward2
Net.__call__ = lambda self, *a, **k: nn.Module.__call__(self, *a, **k)
m.__class__ = Sub
m.__class__ = Net
torch.set_default_dtype(torch.float64)
torch.set_default_dtype(torch.float32)
torch.use_deterministic_algorithms(True)
torch.use_deterministic_algorithms(False)
torch.set_float32_matmul_precision('medium')
torch.set_grad_enabled(False)
torch.set_grad_enabled(True)
torch.autograd.set_detect_anomaly(True)
torch.backends.mkldnn.set_flags(False)
w.x = torch.randn(3, 4)
w.opt = torch.optim.Adam(m.parameters())
w.opt.param_groups[0]['lr'] = 0.5
w.opt.param_groups[0]['momentum'] = 0.9
w.opt.state.clear()
w.opt.load_state_dict(copy.deepcopy(w.opt.state_dict()))
w.opt.param_groups[0]['lr'] = torch.tensor(0.1)
w.opt.param_groups[0]['weight_decay'] = 0.1
w.add_group()
w.opt.param_groups[0]['maximize'] = True
w.opt = torch.optim.SGD(m.parameters(), 0.1, momentum=0.5)
w.opt.param_groups[0]['params'].pop()
m.register_state_dict_pre_hook(lambda *a: None)
m.register_module('nn9', nn.Linear(4, 4))
m.compile(backend=w.backend)
nn.Linear.extra_attr = 1
w.ctx = 'no_grad'
w.ctx = 'autocast'
w.ctx = 'inference'
w.ctx = ''
w.ctx = 'enable'
""".strip("\n").splitlines()
"""Statements; ``m`` is the module and ``w`` the world of the program."""
