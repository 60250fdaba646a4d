"""A GGUF file into a Hugging Face directory. Run as a process of its own: the memory torch takes goes with it."""

import os
import sys
from pathlib import Path


def main() -> None:
    """`python -m stratakv.deploy.convert GGUF DIRECTORY`: the weights in bfloat16, the tokenizer and its template."""
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    torch.set_num_threads(1)
    folder, name = str(source.parent), source.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    # Without dequantize the weights stay packed, which cannot be saved and is slow on a CPU.
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    vars(model.config).pop("quantization_config", None)  # how it was packed means nothing any more
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    main()
