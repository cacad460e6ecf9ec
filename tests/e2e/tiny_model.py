"""A whole Llama-shaped GGUF file with random weights and a byte-level tokenizer, small enough to start in no time."""

import gguf
import numpy as np

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
HEADS, KV_HEADS, HEAD_DIM, HIDDEN, FFN = 4, 2, 16, 64, 96
END_OF_TEXT, IM_START, IM_END, TH = 256, 257, 258, 259
VOCABULARY = 260


def byte_alphabet():
    """GPT-2's 256 characters, in byte order: byte b is token b."""
    printable = set(range(ord("!"), ord("~") + 1)) | set(range(0xA1, 0xAD)) | set(range(0xAE, 0x100))
    following = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(following)) for b in range(256)]


def write_tiny_llama(
    path, *, seed=1, layers=4, context=1024, architecture="llama", chat_template=CHATML, kind=None, extra=None
):
    """`kind`: storage of the matrices, a gguf.GGMLQuantizationType (Q4_1). `extra` gets the writer before it writes."""
    kind = gguf.GGMLQuantizationType.Q4_1 if kind is None else kind
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_name("Tiny llama")
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(byte_alphabet() + ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "th"])
    types = [int(gguf.TokenType.NORMAL)] * VOCABULARY
    for control in (END_OF_TEXT, IM_START, IM_END):
        types[control] = int(gguf.TokenType.CONTROL)
    writer.add_token_types(types)
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(IM_START)
    writer.add_eos_token_id(IM_END)
    writer.add_add_bos_token(False)
    if chat_template:
        writer.add_chat_template(chat_template)

    def matrix(name, inputs, outputs, scale=0.2, as_kind=kind):
        values = (random.standard_normal((outputs, inputs)) * scale).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(values, as_kind), raw_dtype=as_kind)

    def norm(name):
        writer.add_tensor(name, np.ones(HIDDEN, dtype=np.float32))

    matrix("token_embd.weight", HIDDEN, VOCABULARY, 1.0, gguf.GGMLQuantizationType.Q8_0)
    norm("output_norm.weight")
    for layer in range(layers):
        block = f"blk.{layer}."
        norm(block + "attn_norm.weight")
        matrix(block + "attn_q.weight", HIDDEN, HEADS * HEAD_DIM)
        matrix(block + "attn_k.weight", HIDDEN, KV_HEADS * HEAD_DIM)
        matrix(block + "attn_v.weight", HIDDEN, KV_HEADS * HEAD_DIM)
        matrix(block + "attn_output.weight", HEADS * HEAD_DIM, HIDDEN)
        norm(block + "ffn_norm.weight")
        matrix(block + "ffn_gate.weight", HIDDEN, FFN)
        matrix(block + "ffn_up.weight", HIDDEN, FFN)
        matrix(block + "ffn_down.weight", FFN, HIDDEN)
    if extra is not None:
        extra(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
