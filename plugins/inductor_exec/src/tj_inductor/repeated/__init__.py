"""Regions of many equal parts that need nothing of each other, such as updates of parameters.

One part is compiled, and its kernels run for all parts in one call.
"""
