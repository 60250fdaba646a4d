"""How a cluster starts: the `stratakv` command, its settings tree and the Ray launch."""
