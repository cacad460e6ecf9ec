"""llama.cpp through its C API (the ctypes declarations of llama-cpp-python): flash attention, its default KV type and
batch sizes. Prompts one after another, then all sequences in step.

Settings: model, threads, sequences, context (positions a sequence). Run by bench/compare.py.
"""

import time

import worker


class Llama:
    def __init__(self, settings):
        import llama_cpp.llama_cpp as api
        import numpy

        self.api, self.numpy = api, numpy
        self.log = api.llama_log_callback(lambda level, text, data: None)
        api.llama_log_set(self.log, None)
        api.llama_backend_init()
        self.model = api.llama_model_load_from_file(settings["model"].encode(), api.llama_model_default_params())
        assert self.model, f"cannot load {settings['model']}"
        parameters = api.llama_context_default_params()
        self.sequences = settings["sequences"]
        parameters.n_ctx = settings["context"] * self.sequences
        parameters.n_seq_max = self.sequences
        parameters.n_threads = parameters.n_threads_batch = settings["threads"]
        parameters.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_ENABLED
        self.context = api.llama_init_from_model(self.model, parameters)
        assert self.context, "cannot make a context"
        self.memory = api.llama_get_memory(self.context)
        self.vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        self.at_once = api.llama_n_batch(self.context)
        self.batch = api.llama_batch_init(self.at_once, 0, 1)
        self.kept = {}  # by sequence: the prompt whose rows are in the cache

    def decode(self, entries):
        """entries: (token, position, sequence, whether its logits are wanted)."""
        batch = self.batch
        batch.n_tokens = len(entries)
        for i, (token, position, sequence, logits) in enumerate(entries):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, logits
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        code = self.api.llama_decode(self.context, batch)
        assert code == 0, f"llama_decode: {code}"

    def best(self, entry):
        """The most probable token after an entry of the last batch."""
        logits = self.api.llama_get_logits_ith(self.context, entry)
        return int(self.numpy.ctypeslib.as_array(logits, (self.vocab,)).argmax())

    def prefill(self, sequence, ids):
        self.api.llama_memory_seq_rm(self.memory, sequence, -1, -1)
        for begin in range(0, len(ids), self.at_once):
            part = ids[begin : begin + self.at_once]
            end = begin + len(part)
            self.decode([(t, begin + i, sequence, begin + i + 1 == len(ids)) for i, t in enumerate(part)])
        self.kept[sequence] = ids
        return self.best(end - begin - 1)

    def again(self, sequence, ids):
        """The rows of a prompt that is there already, and the token after it."""
        self.api.llama_memory_seq_rm(self.memory, sequence, len(ids) - 1, -1)
        self.decode([(ids[-1], len(ids) - 1, sequence, True)])
        return self.best(0)

    def run(self, command):
        prompts, new_tokens = command["prompts"], command["new_tokens"]
        assert len(prompts) <= self.sequences
        keep = command.get("keep_prompts", False)
        ids, times = [], []
        start = time.perf_counter()
        for sequence, prompt in enumerate(prompts):
            known = keep and self.kept.get(sequence) == prompt
            ids.append([self.again(sequence, prompt) if known else self.prefill(sequence, prompt)])
            times.append([time.perf_counter() - start])
        for step in range(new_tokens - 1):
            self.decode([(ids[i][-1], len(prompt) + step, i, True) for i, prompt in enumerate(prompts)])
            for i in range(len(prompts)):
                ids[i].append(self.best(i))
            now = time.perf_counter() - start
            for sequence_times in times:
                sequence_times.append(now)
        return {"times": times, "ids": ids}


if __name__ == "__main__":
    worker.start(lambda settings: Llama(settings).run)
