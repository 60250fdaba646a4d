"""The worker: model, scheduler and engine of one rank of a replica."""
