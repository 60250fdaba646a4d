"""The actors: plain classes, each with a thin Ray shell in its `actor.py`."""
