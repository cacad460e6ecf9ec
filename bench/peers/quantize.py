"""A GGUF file of another type, by llama.cpp's own quantizer: quantize.py FROM TO q4_0|bf16.

Q4_0 keeps the embedding and the output head as they are in FROM (Q8_0 in the model that is compared), as Q4_1 has them.
"""

import ctypes
import sys

import llama_cpp.llama_cpp as api


def main():
    source, target, name = sys.argv[1:]
    parameters = api.llama_model_quantize_default_params()
    parameters.allow_requantize = True
    if name == "q4_0":
        parameters.ftype = api.LLAMA_FTYPE_MOSTLY_Q4_0
        parameters.output_tensor_type = parameters.token_embedding_type = 8  # GGML_TYPE_Q8_0
    else:
        parameters.ftype = api.LLAMA_FTYPE_MOSTLY_BF16
    code = api.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(parameters))
    assert code == 0, f"llama_model_quantize: {code}"


if __name__ == "__main__":
    main()
