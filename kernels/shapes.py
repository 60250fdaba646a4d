"""The shape of one layer's cached KV, as every floor above speaks of it. No torch, so the tree's floor may use it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerShape:
    """KV of one attention layer on one rank.

    `heads` is the number of KV heads held here; `key_dim` and `value_dim` are elements per head and token
    (they differ for latent or decompressed MLA). The numbers are probed from the model, never computed from its config.
    """

    heads: int
    key_dim: int
    value_dim: int

    def elements_per_token(self) -> int:
        """Elements of K and V that one token takes in this layer."""
        return self.heads * (self.key_dim + self.value_dim)
