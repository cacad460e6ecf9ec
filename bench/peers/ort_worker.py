"""ONNX Runtime GenAI on the model as its own builder quantizes it to int4. Sequences of a run form one batch.

Settings: model (the builder's folder), threads, sequences. Run by bench/compare.py.
"""

import json
import time

import worker


class OnnxRuntime:
    def __init__(self, settings):
        import numpy
        import onnxruntime_genai as genai

        self.numpy, self.genai = numpy, genai
        config = genai.Config(settings["model"])
        threads = {"intra_op_num_threads": settings["threads"]}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": threads}}}))
        self.model = genai.Model(config)

    def run(self, command):
        prompts = self.numpy.array(command["prompts"], dtype=self.numpy.int32)
        sequences, length = prompts.shape
        total = length + command["new_tokens"]
        parameters = self.genai.GeneratorParams(self.model)
        # min_length: no end before all are there.
        parameters.set_search_options(
            batch_size=sequences, max_length=total, min_length=total, do_sample=False, past_present_share_buffer=True
        )
        generator = self.genai.Generator(self.model, parameters)
        times, ids = [], [[] for _ in range(sequences)]
        start = time.perf_counter()
        generator.append_tokens(prompts)
        while len(times) < command["new_tokens"]:
            generator.generate_next_token()
            times.append(time.perf_counter() - start)
            for answer, token in zip(ids, generator.get_next_tokens()):
                answer.append(int(token))
        return {"times": [times] * sequences, "ids": ids}


if __name__ == "__main__":
    worker.start(lambda settings: OnnxRuntime(settings).run)
