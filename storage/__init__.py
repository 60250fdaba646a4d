"""The memory hierarchy: page keys, the page tree, slots, policies and the moves between tiers. No torch here."""
