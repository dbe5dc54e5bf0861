"""tj-torch: PyTorch programs in, PyTorch calls out.

``frontend`` captures, ``dialect`` gives metadata, effects and bodies, ``execute`` runs. The plugin
itself is `tj_torch.plugin`.
"""
