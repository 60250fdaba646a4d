"""The supervisor: starts replicas and replaces those that die by a next generation."""
