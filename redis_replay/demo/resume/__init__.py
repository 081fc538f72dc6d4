"""The resume demo: a training run that ends bit for bit as if nothing had been killed.

A run is made a function of its seeds: batches are taken whole and in order, a group is generated
with the weights of version ``max(0, target step - lookahead)`` and with numbers drawn by prompt,
target step and row, and networks use one thread. So any difference is the fault of what was lost,
trained twice or mixed up on the way (D72).
"""
