"""Write a checkpoint of train.py as a model folder: bfloat16 weights, configs, tokenizer, template, held-out turns.

python publish.py --work work --target ../../app/forearm/demo_model
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizer import SETTINGS
from train import model_config

GENERATION: dict[str, object] = {
    "do_sample": True,
    "temperature": 0.3,
    "top_p": 0.9,
    "top_k": 40,
    "eos_token_id": [2, 0],
    "pad_token_id": 0,
    "max_new_tokens": 128,
}


def config_json() -> dict[str, object]:
    """Return config.json, with the names that every release of transformers since Qwen2 reads."""
    config = model_config()
    names = [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "hidden_act",
        "max_position_embeddings",
        "initializer_range",
        "rms_norm_eps",
        "tie_word_embeddings",
        "use_cache",
        "attention_dropout",
        "use_sliding_window",
    ]
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        **{name: getattr(config, name) for name in names},
        "rope_theta": 10000.0,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "torch_dtype": "bfloat16",
    }


def write_json(path: Path, content: dict[str, object]) -> None:
    """Write JSON, indented, with a newline at the end."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")


def write_weights(checkpoint: Path, path: Path) -> None:
    """Write the checkpoint's weights in bfloat16; the output layer shares the embedding's and is left out."""
    state = torch.load(checkpoint, weights_only=True)["model"]
    tensors = {name: value.to(torch.bfloat16).contiguous() for name, value in state.items() if name != "lm_head.weight"}
    save_file(tensors, path, metadata={"format": "pt"})


def main() -> None:
    """Read the command line and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="train.py's folder")
    parser.add_argument("--target", type=Path, required=True, help="the model folder to write")
    arguments = parser.parse_args()
    target: Path = arguments.target
    target.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "heldout.jsonl"):
        shutil.copyfile(arguments.work / name, target / name)
    write_json(target / "config.json", config_json())
    write_json(target / "generation_config.json", GENERATION)
    write_json(target / "tokenizer_config.json", SETTINGS)
    write_weights(arguments.work / "checkpoint.pt", target / "model.safetensors")


if __name__ == "__main__":
    main()
