"""LongBench's English sets from local files in its own format: prompts, truncation, generation settings and scores.

A file is DATASET.jsonl, a JSON object a line with input, context, answers (list), all_classes (list or null) and _id. The
prompts here have the structure of the benchmark's in our own words; for scores that are to stand beside published ones,
give its own dataset2prompt.json (--prompts).
"""

import dataclasses
import hashlib
import json

from . import scorers


@dataclasses.dataclass(frozen=True)
class Dataset:
    new_tokens: int
    scorer: object
    prompt: str
    chat: bool = True  # few-shot sets and code are continued as plain text
    first_line: bool = False  # only the answer's first line counts


ASK = "Answer with as few words as you can, and with nothing else."
QA = "Answer the question by the passages below. " + ASK + "\n\nThe passages:\n\n{context}\n\nAnswer the question by the passages above. " + ASK + "\n\nQuestion: {input}\nAnswer:"  # fmt: skip
DATASETS = {
    "narrativeqa": Dataset(128, scorers.f1, "Here are a story and a question about it. " + ASK + "\n\nStory: {context}\n\nNow answer the question about the story. " + ASK + "\n\nQuestion: {input}\n\nAnswer:"),  # fmt: skip
    "qasper": Dataset(128, scorers.f1, 'Here are a scientific article and a question about it. Answer with as few words as you can; where the article does not tell, answer "unanswerable"; to a question of yes or no, answer "yes", "no" or "unanswerable".\n\nArticle: {context}\n\nNow answer the question about the article in that way.\n\nQuestion: {input}\n\nAnswer:'),  # fmt: skip
    "multifieldqa_en": Dataset(64, scorers.f1, "Read the text below and answer a question about it in a few words.\n\n{context}\n\nNow answer the question about the text above in a few words.\n\nQuestion: {input}\nAnswer:"),  # fmt: skip
    "hotpotqa": Dataset(32, scorers.f1, QA),
    "2wikimqa": Dataset(32, scorers.f1, QA),
    "musique": Dataset(32, scorers.f1, QA),
    "gov_report": Dataset(512, scorers.rouge_l, "Here is a report of a government agency. Summarise it in one page.\n\nReport:\n{context}\n\nNow summarise the report in one page.\n\nSummary:"),  # fmt: skip
    "qmsum": Dataset(512, scorers.rouge_l, "Here are the minutes of a meeting and a query about them. Answer in one or more sentences.\n\nMinutes:\n{context}\n\nNow answer the query about the meeting in one or more sentences.\n\nQuery: {input}\nAnswer:"),  # fmt: skip
    "multi_news": Dataset(512, scorers.rouge_l, "Here are several news articles. Summarise all of them in one page.\n\nNews:\n{context}\n\nNow summarise all of the news in one page.\n\nSummary:"),  # fmt: skip
    "trec": Dataset(64, scorers.classification, "Say which type the question is of. Some examples:\n\n{context}\n{input}", chat=False, first_line=True),  # fmt: skip
    "triviaqa": Dataset(32, scorers.f1, "Answer the question by the passage. Give the answer only. Some examples:\n\n{context}\n\n{input}", chat=False, first_line=True),  # fmt: skip
    "samsum": Dataset(128, scorers.rouge_l, "Summarise the dialogue in a few sentences. Some examples:\n\n{context}\n\n{input}", chat=False, first_line=True),  # fmt: skip
    "passage_count": Dataset(32, scorers.count, "Below are paragraphs, some of them more than once. How many different ones are there?\n\n{context}\n\nSay how many different paragraphs there are, as a number and nothing else.\n\nThe number:"),  # fmt: skip
    "passage_retrieval_en": Dataset(32, scorers.retrieval, 'Here are 30 paragraphs and a summary of one of them.\n\n{context}\n\nThe summary:\n\n{input}\n\nWhich paragraph is it of? Answer in the form "Paragraph 1", "Paragraph 2" and so on.\n\nAnswer:'),  # fmt: skip
    "lcc": Dataset(64, scorers.code_similarity, "Complete the code below.\n{context}Next line of code:\n", chat=False),
    "repobench-p": Dataset(64, scorers.code_similarity, "Complete the code below.\n{context}{input}Next line of code:\n", chat=False),
}  # fmt: skip


def load(folder, names=None):
    """[(dataset, record)] of the files there; names: of these only."""
    files = {path.stem: path for path in sorted(folder.glob("*.jsonl"))}
    unknown = sorted(set(names or files) - set(DATASETS))
    missing = sorted(set(names or ()) - set(files))
    if unknown:
        raise ValueError(
            f"no data set of LongBench's English ones: {', '.join(unknown)}; there are {', '.join(DATASETS)}"
        )
    if missing or not files:
        raise ValueError(f"{folder} has no {', '.join(name + '.jsonl' for name in missing) or 'file *.jsonl'}")
    found = []
    for name in names or files:
        for number, line in enumerate(files[name].read_text(encoding="utf-8").splitlines(), 1):
            record = json.loads(line)
            absent = {"input", "context", "answers", "_id"} - set(record)
            if absent:
                raise ValueError(f"{files[name]}:{number} has no {', '.join(sorted(absent))}")
            found.append((name, record))
    return found


def filled(template, record):
    """The prompt, and how much of it stands before what is asked: up to the end of the context."""
    before, mark, after = template.partition("{context}")
    if not mark:
        raise ValueError(f"a prompt has no {{context}}: {template!r}")

    def fill(text):
        return text.replace("{input}", record["input"])

    head = fill(before) + record["context"]
    return head + fill(after), len(head)


def digest(template, record):
    """Of all that an answer and its score depend on."""
    return hashlib.sha256(json.dumps([template, record], sort_keys=True).encode()).hexdigest()[:16]


def truncated(prompt, split, longest, tokenize, detokenize):
    """The first and the last half of `longest` tokens, where there are more; and the split of that. What is cut out is taken
    from the context, so what follows it stays. `tokenize` puts nothing before the text's own tokens: what it would put
    there would become part of the text."""
    ids = tokenize(prompt)
    if len(ids) <= longest:
        return prompt, split
    half = longest // 2
    cut = detokenize(ids[:half]) + detokenize(ids[len(ids) - half :])
    asked = prompt[split:]
    if not cut.endswith(asked):
        raise ValueError(f"what is asked has more than {half} tokens: choose a greater --max-length")
    return cut, len(cut) - len(asked)


def score(name, answer, record):
    dataset = DATASETS[name]
    if dataset.first_line:
        answer = answer.lstrip("\n").split("\n")[0]
    return scorers.best(dataset.scorer, answer, record["answers"], record.get("all_classes"))


def longest_prompt(context_length):
    """The benchmark's own lengths where one of them fits the model."""
    fitting = [n for n in (31500, 7500, 3500) if n + 600 <= context_length]
    return fitting[0] if fitting else max(64, context_length - 600)
