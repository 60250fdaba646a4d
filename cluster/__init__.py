"""What the parts of a cluster share: settings, wire messages, step plans, rank agreement, metrics."""
