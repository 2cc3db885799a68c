"""What the package is to ``torch.distributed`` and to TorchComms: entry points, groups, memory, reports.

Its users find it through :mod:`tutti`, :mod:`tutti.ops` and :mod:`tutti.serving`.
"""
