"""lm-eval (EleutherAI's lm-evaluation-harness) over a RippleKV server.

    python -m ripplekv.lm_eval run --model ripplekv --model_args address=127.0.0.1:50051,retention=0.2 --tasks ...

is lm-eval's own command line with the model `ripplekv`, whose arguments are those of RippleKVLM. Importing this module
registers it. Needs lm-eval 0.4.9 or later (requirements-lm-eval.txt beside the package's sources).
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

# Ours alone in the registry would keep lm-eval from adding its own.
import lm_eval.models  # noqa: F401
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from .client import Client
from .harness import Harness


@register_model("ripplekv")
class RippleKVLM(LM):
    """address: HOST:PORT of the server. full: keep every position. retention: keep this share of them. kv: a KvParams as a
    dictionary or as JSON. Of these three one at most; none: the server's plan. max_length: tokens of a prompt and what
    follows it (default: the model's context). max_gen_toks: output tokens where a task says nothing. concurrency: requests at
    a time (batch_size means nothing here: the server makes its batches). tls, tls_ca, tls_certificate, tls_key: as in Client.
    token_file: a file that holds the token; without it the token in the environment's RIPPLEKV_TOKEN, if any. (lm-eval
    writes model_args into its results, so the token itself is none of them.)"""

    def __init__(
        self,
        address: str = "127.0.0.1:50051",
        full: bool = False,
        retention: float | None = None,
        kv: str | Mapping[str, Any] | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        concurrency: int = 8,
        timeout: float = 3600,
        tls: bool = False,
        tls_ca: str | None = None,
        tls_certificate: str | None = None,
        tls_key: str | None = None,
        token_file: str | None = None,
        batch_size: Any = None,
        device: Any = None,
        max_batch_size: Any = None,
    ) -> None:
        super().__init__()
        if sum((bool(full), retention is not None, kv is not None)) > 1:
            raise ValueError("full, retention and kv: one at most may be given")
        params: Mapping[str, Any] | None = json.loads(kv) if isinstance(kv, str) else kv
        if full:
            params = {"size": {"full": {}}}
        elif retention is not None:
            params = {"size": {"retention": float(retention)}}
        if token_file is None:
            token = os.environ.get("RIPPLEKV_TOKEN")
        else:
            token = pathlib.Path(token_file).read_text(encoding="utf-8").strip()
        self._harness = Harness(
            Client(
                address,
                timeout=timeout,
                tls=bool(tls),
                tls_ca=tls_ca,
                tls_certificate=tls_certificate,
                tls_key=tls_key,
                token=token,
            ),
            kv=params,
            max_length=max_length,
            max_gen_toks=int(max_gen_toks),
            concurrency=int(concurrency),
        )

    def close(self) -> None:
        self._harness.close()
        self._harness.client.close()

    def __enter__(self) -> RippleKVLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, method: Any, requests: list[Any], disable_tqdm: bool) -> list[Any]:
        with tqdm(total=len(requests), disable=disable_tqdm, desc=method.__name__) as bar:
            return method(requests, bar.update)

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        answers = self._ask(self._harness.loglikelihood, [r.args for r in requests], disable_tqdm)
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, answer)
        return answers

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        answers = self._ask(self._harness.loglikelihood_rolling, [r.args[0] for r in requests], disable_tqdm)
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, answer)
        return answers

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        answers = self._ask(self._harness.generate_until, [r.args for r in requests], disable_tqdm)
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, answer)
        return answers

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        if not add_generation_prompt:
            raise NotImplementedError(
                "the server renders a chat with the opening of an answer: no answer can be begun here"
            )
        client = self._harness.client
        # As it goes on from BOS, which is put before every text that is asked.
        return client.detokenize(self._harness.without_lead(client.tokenize(chat_history)))

    @property
    def tokenizer_name(self) -> str:
        return self._harness.model.fingerprint

    def get_model_info(self) -> dict[str, Any]:
        model = self._harness.model
        return {"model_name": model.model.name, "model_sha": model.fingerprint, "ripplekv": model.versions.ripplekv}


def main() -> None:
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    # Under its own name, so that what lm-eval finds is the class of the imported module.
    from ripplekv.lm_eval import main as run

    run()
