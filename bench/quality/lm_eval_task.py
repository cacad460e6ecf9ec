"""lm-eval over the server beside lm-eval's own transformers backend on the same file: two local tasks, item by item."""

import json
import os
import tempfile
import pathlib

from report import table  # bench/report.py

from . import ruler
from .words import ADJECTIVES, NOUNS, VERBS

TASKS = {
    "ripplekv_choices": "output_type: multiple_choice\ndoc_to_text: text\ndoc_to_choice: choices\ndoc_to_target: label\nmetric_list:\n  - metric: acc\n",  # fmt: skip
    "ripplekv_writing": "output_type: generate_until\ndoc_to_text: text\ndoc_to_target: target\ngeneration_kwargs:\n  until: ['\\n']\n  do_sample: false\n  max_gen_toks: 12\nmetric_list:\n  - metric: exact_match\n",  # fmt: skip
}


def records(count):
    """Questions made of words, the same on every machine; whether an answer is right is no matter here."""
    rng = ruler.generator("lm-eval")
    choices, writing = [], []
    for _ in range(count):
        a, b, c = rng.sample(NOUNS, 3)
        adjective, verb = rng.choice(ADJECTIVES), rng.choice(VERBS)
        choices.append({"text": f"The {adjective} {a} and the {b} are on the table. In the box is the {c}.\nQuestion: what is in the box?\nAnswer:",
                        "choices": [f" The {a}", f" The {b}", f" The {c}", " Nothing"], "label": 2})  # fmt: skip
        writing.append({"text": f"{a}: a {adjective} thing.\n{b}: something to {verb}.\n{c}:", "target": adjective})
    return {"ripplekv_choices": choices, "ripplekv_writing": writing}


def write_tasks(folder, count):
    for name, items in records(count).items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
        (folder / f"{name}.yaml").write_text(
            f"task: {name}\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {data}\ntest_split: test\n{TASKS[name]}",
            encoding="utf-8",
        )


def evaluated(model, arguments, folder):
    """{task: [an item's raw answers]}."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    found = lm_eval.simple_evaluate(
        model=model, model_args=arguments, tasks=list(TASKS), task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        log_samples=True, bootstrap_iters=0, batch_size=16, random_seed=None,
    )  # fmt: skip
    return {task: sorted(found["samples"][task], key=lambda s: s["doc_id"]) for task in TASKS}


def compare(folder, model_path, address, count):
    """How many items of each task the two answer alike, and the largest difference of a log-likelihood."""
    import ripplekv.lm_eval  # noqa: F401  (registers the model)

    write_tasks(folder, count)
    theirs = evaluated(
        "hf",
        # transformers reads this file's tokenizer as one that begins every text with BOS, which the file denies.
        {
            "pretrained": str(model_path.parent),
            "gguf_file": model_path.name,
            "dtype": "float32",
            "device": "cpu",
            "add_bos_token": False,
        },  # fmt: skip
        folder,
    )
    ours = evaluated("ripplekv", {"address": address, "full": True}, folder)
    result = {}
    for task in TASKS:
        pairs = list(zip(ours[task], theirs[task], strict=True))
        different = [
            {"item": a["doc_id"], "ours": answer(a), "theirs": answer(b)} for a, b in pairs if answer(a) != answer(b)
        ]
        result[task] = {"items": len(pairs), "same": len(pairs) - len(different), "different": different}
    scores = [
        (x[0], y[0])
        for a, b in zip(ours["ripplekv_choices"], theirs["ripplekv_choices"], strict=True)
        for x, y in zip(a["filtered_resps"], b["filtered_resps"], strict=True)
    ]
    result["ripplekv_choices"]["largest_difference"] = max(abs(float(x) - float(y)) for x, y in scores)
    return result


def answer(sample):
    """The choice, or the text."""
    responses = sample["filtered_resps"]
    if isinstance(responses[0], str):
        return responses[0]
    return max(range(len(responses)), key=lambda i: float(responses[i][0]))


def run(options, address, command):
    """Whether all items are answered alike."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import lm_eval  # noqa: F401
    except ImportError:
        raise ValueError(
            "lm-eval is not installed: pip install --no-deps -r client/python/requirements-lm-eval.txt"
        ) from None
    with tempfile.TemporaryDirectory(prefix="ripplekv-lm-eval-") as folder:
        result = compare(pathlib.Path(folder), options.model, address, options.items)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(
        json.dumps({"command": command, "tasks": result}, indent=1) + "\n", encoding="utf-8"
    )
    rows = [["task", "items", "answered alike", "largest difference of a log-likelihood"]]
    for task, entry in result.items():
        difference = entry.get("largest_difference")
        rows.append([task, entry["items"], entry["same"], "-" if difference is None else f"{difference:.2g}"])
    text = f"# lm-eval over the server, beside its own backend\n\n`{command}`\n\n{table(rows)}\n"
    (options.out / "results.md").write_text(text, encoding="utf-8")
    print(text)
    return all(entry["same"] == entry["items"] for entry in result.values())
