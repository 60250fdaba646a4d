"""Write and eviction policies, each a small class behind one registry."""
