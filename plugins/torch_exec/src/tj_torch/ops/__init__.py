"""Semantics of PyTorch's operations: names, metadata, effects and bodies, read off PyTorch.

Each room imports lower ones only. From the lowest: `fakes` (fake tensor modes), `sizes` (symbols),
`values` (PyTorch's values as the core's), `naming`, `context` (grad mode, autocast), `settings` (of
the process), `facts` (of single operations), `expansion` (one run of a call on fake tensors),
`memo` (runs are not repeated), `dialect` (answers to the core), and `service`, one per session.
"""
