"""The tape that eager code is recorded on: nodes, what they save, and writes through views.

Below dispatch, which makes the nodes; what runs them backwards is in jitgrad.autograd, above it.
"""
