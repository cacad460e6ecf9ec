"""transformers with an attention of the test's own in every layer."""

import torch


def logits_with(model, attention, ids, position):
    """Logits [tokens, vocab] of ids at position and on; attention(layer, q, k, v): [heads, tokens, d] each."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def adapter(module, query, key, value, attention_mask=None, **_):
        out = attention(module.layer_idx, query[0], key[0], value[0])
        return out.transpose(0, 1)[None], None

    ALL_ATTENTION_FUNCTIONS.register("reference", adapter)
    before = model.config._attn_implementation
    model.config._attn_implementation = "reference"
    try:
        positions = torch.arange(position, position + len(ids))[None]
        with torch.inference_mode():
            return model(torch.tensor([ids]), position_ids=positions, use_cache=False).logits[0]
    finally:
        model.config._attn_implementation = before
