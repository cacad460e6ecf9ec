#!/usr/bin/env python3
"""Writes golden/dequantize.bin: random packed rows and what gguf-py dequantises them to.

For each tensor type of kernels/tensor_type.h, in its order: kRows rows of kCols numbers, packed, then as fp32.
Run it from this folder with the package gguf installed; the result is committed.
"""
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize

ROWS, COLS = 5, 96
rng = np.random.default_rng(7)


def halves(count):
    """Scales of both signs and many sizes, subnormal ones and zero among them."""
    x = (rng.standard_normal(count) * 10.0 ** rng.uniform(-8, 1, count)).astype(np.float16)
    x[0] = 0
    return x


def blocks(nibble_bytes, scales):
    count = ROWS * COLS // 32
    fields = [halves(count).view(np.uint8).reshape(count, 2) for _ in range(scales)]
    fields.append(rng.integers(0, 256, (count, nibble_bytes), dtype=np.uint8))
    return np.concatenate(fields, axis=1).reshape(ROWS, -1)


floats = (rng.standard_normal((ROWS, COLS)) * 10.0 ** rng.uniform(-6, 3, (ROWS, COLS))).astype(np.float32)
packed = {
    T.F32: floats.view(np.uint8).reshape(ROWS, -1),
    T.F16: floats.astype(np.float16).view(np.uint8).reshape(ROWS, -1),
    T.BF16: (floats.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(ROWS, -1),
    T.Q8_0: blocks(32, 1),
    T.Q4_0: blocks(16, 1),
    T.Q4_1: blocks(16, 2),
}
with open("golden/dequantize.bin", "wb") as out:
    for kind, data in packed.items():
        source = data.view({T.F32: np.float32, T.F16: np.float16}.get(kind, np.uint8))
        values = dequantize(source, kind).astype(np.float32)
        assert values.shape == (ROWS, COLS), (kind, values.shape)
        out.write(data.tobytes())
        out.write(values.tobytes())
