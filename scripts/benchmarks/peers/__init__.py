"""Peers of the store, each driven by a small worker in an environment of its own.

A worker runs where nothing of the store is installed: it may import `benchmarks.rows`,
`benchmarks.peers.obeying` and its peer, and nothing else of this package.
"""
