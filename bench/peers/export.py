"""A GGUF model as the folder that transformers saves: export.py MODEL.gguf FOLDER."""

import pathlib
import sys

import torch
import transformers


def main():
    model, folder = pathlib.Path(sys.argv[1]), sys.argv[2]
    where = {"pretrained_model_name_or_path": str(model.parent), "gguf_file": model.name}
    transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(**where).save_pretrained(folder)


if __name__ == "__main__":
    main()
