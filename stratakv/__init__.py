"""StrataKV: an LLM serving cluster on Ray whose KV cache is a memory hierarchy."""
