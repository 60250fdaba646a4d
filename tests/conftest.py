"""What all tests share: no hub, one thread, and the small model that the end-to-end tests serve."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# A machine that is busy with something else is no failure.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# Set before any test imports torch or transformers, and inherited by every process a test starts.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("RAY_AUTH_MODE", "token")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory of a random Llama of two layers, with a byte tokenizer and a chat template."""
    from tiny_llama import make_tiny_llama

    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny-llama")
