"""Measures the store against its targets, and against its peers; `scripts/bench` starts it.

* `targets` holds what is to be reached, as a table; nothing else knows a limit.
* A measurement (`registry`) is a function that returns samples, one a round, for parts of targets.
* `turns` lets the two sides of a ratio take turns within each round.
* `results` turns samples into figures, `page` and `plots` show them.

It is no part of the library and is not installed with it.
"""
