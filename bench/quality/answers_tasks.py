"""Tasks with answers: RULER's, a retrieval set of our own, and LongBench's."""

import functools
import json

from . import bootstrap, longbench, methods, retrieval, ruler, texts
from .asking import ask


def answered(client, prompt, kv, question, max_tokens, scored, gold=None, **options):
    """What `ask` finds, with the score of an answer."""
    found = ask(client, prompt, kv, question, max_tokens, gold, **options)
    return found | ({"score": scored(found["answer"])} if "answer" in found else {})


def gold_of(item, options):
    """What the likelihood is measured of, where it is."""
    return item.gold() if "likelihood" in options.measure else None


def ruler_jobs(options, client, tokens):
    @functools.lru_cache(maxsize=2)
    def made(task, length, number):
        item = ruler.make_item(task, length, number, lambda question, prefix: len(tokens.prompt(question, prefix).ids))
        return item, tokens.prompt(item.question, item.prefix, item.split)

    def measure(task, length, number, question, kv):
        item, prompt = made(task, length, number)
        scored = functools.partial(ruler.match_all, references=item.references)
        gold, answers = gold_of(item, options), "answers" in options.measure
        return answered(client, prompt, kv, question, ruler.NEW_TOKENS[task], scored, gold, answers=answers)

    for task in options.tasks:
        for length in options.lengths:
            for number in range(options.samples):
                for method, fraction in methods.cells(options.methods, options.fractions):
                    kv = options.sizing.kv(method, fraction)
                    for question in options.question:
                        key = (task, length, number, question, method.name, fraction)
                        yield key, functools.partial(measure, task, length, number, question, kv)


def retrieval_jobs(options, client, tokens, results):
    """The full cache first: only what it answers rightly in every way of asking is asked of the others. `results` is what
    was measured so far, the job before included."""
    found = [d for d in texts.documents(options.documents, options.corpus) if d.kind == texts.PROSE]
    found = sorted((d for d in found if d.split == options.split), key=lambda d: d.digest)
    if not found:
        raise ValueError(f"no prose in the {options.split} split: give more --documents")
    sized = [method for method in options.methods if method.sized]
    for kind in retrieval.KINDS:
        solved = 0
        for number in range(options.candidates):
            if solved == options.items:
                break
            item = retrieval.make_item(
                kind, options.length, number, found, lambda question, prefix: len(tokens.prompt(question, prefix).ids)
            )
            prompt = tokens.prompt(item.question, item.prefix, item.split)
            scored = functools.partial(ruler.match_all, references=item.references)
            gold = gold_of(item, options)

            def of(method, fraction):
                kv = options.sizing.kv(method, fraction)
                for question in options.question:
                    # Numbers count other items where there are other documents.
                    key = (kind, options.length, f"{number} {item.digest}", question, method.name, fraction)
                    yield (
                        key,
                        functools.partial(answered, client, prompt, kv, question, retrieval.NEW_TOKENS, scored, gold),
                    )

            for key, measure in of(methods.METHODS["full"], None):
                yield key, measure
                if results[key]["score"] < 1:
                    break
            else:
                solved += 1
                for method, fraction in methods.cells(sized, options.fractions):
                    yield from of(method, fraction)


def longbench_jobs(options, client, tokens):
    templates = json.loads(options.prompts.read_text()) if options.prompts else {}
    newline = tokens.following("\n")
    for name, record in longbench.load(options.data, options.datasets)[: options.most]:
        dataset = longbench.DATASETS[name]
        template = templates.get(name, dataset.prompt)
        item = f"{record['_id']} {longbench.digest(template, record)}"
        text, split = longbench.filled(template, record)
        text, split = longbench.truncated(text, split, options.max_length, tokens.following, tokens.detokenize)
        prompt = tokens.prompt(text, split=split, chat=dataset.chat)
        scored = functools.partial(longbench.score, name, record=record)
        # The benchmark ends these at the first newline, after one token at least.
        ends = {"stop_token_ids": newline[-1:], "min_tokens": 1} if name == "samsum" else {}
        for method, fraction in methods.cells(options.methods, options.fractions):
            kv = options.sizing.kv(method, fraction)
            for question in options.question:
                yield (
                    (name, options.max_length, item, question, method.name, fraction),
                    functools.partial(answered, client, prompt, kv, question, dataset.new_tokens, scored, **ends),
                )


def summary(results):
    """One entry a task, length, way of asking, size and method. Differences are to the baseline and to the full cache, over
    the same items; items of the retrieval set that the full cache does not solve have no other method's result."""
    cells = {}
    for (task, length, number, question, method, fraction), result in results.items():
        cells.setdefault((task, length, question, fraction, method), {})[str(number)] = result
    found = []
    for (task, length, question, fraction, method), items in cells.items():
        entry = {"task": task, "length": length, "question": question, "fraction": fraction, "method": method}
        entry["items"] = len(items)
        entry["bytes_share"] = sum(r["kv_bytes"] for r in items.values()) / sum(
            r["full_kv_bytes"] for r in items.values()
        )
        for figure in ("score", "gold_logprob"):
            if all(figure in r for r in items.values()):
                entry[figure] = bootstrap.mean([r[figure] for r in items.values()])
        for other, key in ((methods.BASELINE, fraction), ("full", None)):
            beside = cells.get((task, length, question, key, other), {})
            shared = sorted(set(beside) & set(items))
            if not shared or method in (other, "full"):
                continue
            for figure in ("score", "gold_logprob"):
                if figure in entry:
                    mine, theirs = ([c[i][figure] for i in shared] for c in (items, beside))
                    entry[f"{figure}_to_{other}"] = bootstrap.difference(mine, theirs)
                    if figure == "score":
                        entry[f"score_share_of_{other}"] = bootstrap.ratio(mine, theirs)
        found.append(entry)
    return found
