"""OpenVINO GenAI's continuous batching over the GGUF file, with its defaults: KV cache in u8, activations as its CPU
plugin chooses. A single request is scheduled as its LLMPipeline does (the whole prompt in one step).

Settings: model, threads, sequences, evict_to (positions; absent: no eviction). Run by bench/compare.py.
"""

import time

import worker

BLOCK = 32  # rows of the CPU plugin's KV blocks


class OpenVino:
    def __init__(self, settings):
        import numpy
        import openvino
        import openvino_genai as genai

        self.numpy, self.openvino, self.genai = numpy, openvino, genai
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False  # it would answer the next round's prompt from this one's
        if settings["sequences"] == 1:
            scheduler.max_num_batched_tokens = 1 << 20
        if settings.get("evict_to"):
            scheduler.use_cache_eviction = True
            # Rounded up, and room to evict from between the first and the most recent rows.
            size = max(-(-settings["evict_to"] // BLOCK) * BLOCK, 3 * BLOCK)
            recent = max(BLOCK, min(128, size // 4 // BLOCK * BLOCK))
            scheduler.cache_eviction_config = genai.CacheEvictionConfig(
                start_size=BLOCK,
                recent_size=recent,
                max_cache_size=size,
                aggregation_mode=genai.AggregationMode.NORM_SUM,
            )
        properties = {"INFERENCE_NUM_THREADS": settings["threads"]}
        self.pipeline = genai.ContinuousBatchingPipeline(settings["model"], scheduler, "CPU", properties)
        self.requests = 0

    def config(self, new_tokens):
        config = self.genai.GenerationConfig()
        config.max_new_tokens = new_tokens
        config.ignore_eos = True
        config.do_sample = False
        return config

    def run(self, command):
        config = self.config(command["new_tokens"])
        prompts = [self.openvino.Tensor(self.numpy.array([ids], dtype=self.numpy.int64)) for ids in command["prompts"]]
        times, ids = [[] for _ in prompts], [[] for _ in prompts]
        start = time.perf_counter()
        handles = []
        for prompt in prompts:
            handles.append(self.pipeline.add_request(self.requests, prompt, config))
            self.requests += 1
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            now = time.perf_counter() - start
            for i, handle in enumerate(handles):
                if handle.can_read():
                    for output in handle.read().values():
                        ids[i] += output.generated_ids
                        times[i] += [now] * len(output.generated_ids)
        return {"times": times, "ids": ids}

    def alone(self, ids, config):
        """The output of one request."""
        prompt = self.openvino.Tensor(self.numpy.array([ids], dtype=self.numpy.int64))
        handle = self.pipeline.add_request(self.requests, prompt, config)
        self.requests += 1
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
        (output,) = handle.read_all()
        return output

    def draw(self, command):
        """Tokens drawn from the model's own distribution, and their log-probabilities."""
        config = self.config(command["new_tokens"])
        config.do_sample, config.temperature, config.top_p, config.top_k = True, 1.0, 1.0, 0
        config.rng_seed, config.logprobs = command["seed"], 1
        output = self.alone(command["draw"], config)
        return {"ids": list(output.generated_ids), "logprobs": list(output.generated_log_probs)}

    def score(self, command):
        """Log-probabilities of tokens after a prompt: those of a longer prompt that is echoed."""
        config = self.config(1)
        config.echo, config.logprobs = True, 1
        prompt, count = command["after"] + command["score"], len(command["score"])
        output = self.alone(prompt, config)
        assert list(output.generated_ids[:-1]) == prompt, "the prompt is not echoed"
        return {"logprobs": list(output.generated_log_probs)[-count - 1 : -1]}

    def answer(self, command):
        does = self.draw if "draw" in command else self.score if "score" in command else self.run
        return does(command)


if __name__ == "__main__":
    worker.start(lambda settings: OpenVino(settings).answer)
