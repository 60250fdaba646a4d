"""Replays a workload without a model: the same hierarchy, tree, policies and router, and nothing that moves a byte."""
