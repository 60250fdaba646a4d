"""Tensor code: the paged KV pool, attention over it and copies in and out of it. torch only, no policy."""
