"""Staleness policies: when a batch may dispatch, which groups are trained, which are dropped.

One module per policy; its docstring is its specification.
"""
