#!/usr/bin/env python3
"""Writes testdata/gguf_v2.gguf, gguf_v3.gguf and gguf_goldens.json with the Python package gguf.

gguf is the format's reference implementation: its writer makes the files, its reader and its dequantisation say what
is in them. Run it with the test environment's Python; the result is committed, and the same for each run.
"""

import json
import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

TESTDATA = pathlib.Path(__file__).parent / "testdata"
TYPES = [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1]


def write(path: pathlib.Path, version: int, alignment: int) -> None:
    gguf.gguf_writer.GGUF_VERSION = version
    writer = gguf.GGUFWriter(path, "llama")
    if alignment != gguf.GGUF_DEFAULT_ALIGNMENT:
        writer.add_custom_alignment(alignment)
    writer.add_uint8("test.uint8", 255)
    writer.add_int8("test.int8", -128)
    writer.add_uint16("test.uint16", 65535)
    writer.add_int16("test.int16", -32768)
    writer.add_uint32("test.uint32", 4294967295)
    writer.add_int32("test.int32", -2147483648)
    writer.add_uint64("test.uint64", 2**64 - 1)
    writer.add_int64("test.int64", -(2**63))
    writer.add_float32("test.float32", 0.1)
    writer.add_float64("test.float64", 0.1)
    writer.add_bool("test.true", True)
    writer.add_bool("test.false", False)
    writer.add_string("test.string", "Grüße, 世界 \U0001f30a")
    writer.add_array("test.strings", ["", "a", "Ġthe", "\n"])
    writer.add_array("test.ints", [-1, 0, 2147483647])
    writer.add_array("test.floats", [0.5, -1.25, 1e30])
    writer.add_array("test.bools", [True, False, True])
    random = np.random.default_rng(version)
    for tensor_type in TYPES:
        values = random.standard_normal((3, 64), dtype=np.float32)
        data = gguf.quants.quantize(values, tensor_type)
        writer.add_tensor(f"{tensor_type.name}.weight", data, raw_dtype=tensor_type)
    writer.add_tensor("vector", np.arange(5, dtype=np.float32))
    writer.add_tensor("four", random.standard_normal((2, 3, 4, 5), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def describe(path: pathlib.Path) -> dict:
    reader = gguf.GGUFReader(path)
    tensors = []
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        tensors.append(
            {
                "name": tensor.name,
                "type": tensor.tensor_type.name,
                "shape": [int(n) for n in tensor.shape],
                "file_offset": int(tensor.data_offset),
                "data": tensor.data.tobytes().hex(),
                # Exact: each is printed with the digits that bring the same float back.
                "values": [float(v) for v in values.flatten()],
            }
        )
    metadata = {
        key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")
    }
    return {"version": int(reader.fields["GGUF.version"].contents()), "metadata": metadata, "tensors": tensors}


def main() -> None:
    TESTDATA.mkdir(exist_ok=True)
    goldens = {}
    for version, alignment in ((2, 32), (3, 64)):
        name = f"gguf_v{version}.gguf"
        write(TESTDATA / name, version, alignment)
        goldens[name] = describe(TESTDATA / name)
    text = json.dumps(goldens, ensure_ascii=False, allow_nan=False)
    (TESTDATA / "gguf_goldens.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
