"""Chat templates against jinja2, set up as `transformers` sets it up for apply_chat_template."""

import json
import pathlib
import random
import sys

import chat_templates
import jinja2
import pytest
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "model"))
import tokenizer_oracle as oracle  # noqa: E402

BOS, EOS = "<s>", "</s>"


def environment():
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    made.filters["tojson"] = lambda x, **kw: json.dumps(x, ensure_ascii=False, **kw)
    made.globals["raise_exception"] = raise_exception
    return made


def reference(template, messages, generate, bos, eos):
    """The rendered text, or the exception."""
    try:
        return (
            environment()
            .from_string(template)
            .render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=generate,
                bos_token=bos,
                eos_token=eos,
            )
        )
    except Exception as error:  # noqa: BLE001 - jinja2 lets Python's own out too
        return error


def conversations(seed=0, count=60):
    rng = random.Random(seed)
    contents = [
        "Hello", "", " padded \n", "What is 2+2?\n\nThink.", "é中🙂", "{{ 7*7 }} {% if %}", "a 'quoted' \"text\"\\n",
        "<think>\nhm\n</think>\n\nanswer", "\u3000wide\u3000", "line1\nline2\n", "'s 123 </think>", "banana", "x" * 300,
    ]  # fmt: skip
    lists = [[{"role": "user", "content": "banana \u00e4\u00f6 <x>"}]]
    for _ in range(count):
        messages = []
        if rng.random() < 0.4:
            messages.append({"role": "system", "content": rng.choice(contents)})
        for turn in range(rng.randint(1, 6)):
            messages.append({"role": ("user", "assistant")[turn % 2], "content": rng.choice(contents)})
        if rng.random() < 0.15:
            rng.shuffle(messages)
        lists.append(messages)
    return lists


def compare(template, cases, tokenizer=None, own=False, bos=BOS, eos=EOS):
    """Differences; how many texts were equal; how many were refused by both."""
    requests = []
    for messages, generate in cases:
        request = {"messages": messages, "generate": generate}
        if not own:
            request |= {"template": template, "bos_token": bos, "eos_token": eos}
        requests.append(request)
    wrong, equal, refused = [], 0, 0
    for (messages, generate), reply in zip(cases, oracle.ask(requests)):
        expected = reference(template, messages, generate, bos, eos)
        if isinstance(expected, Exception):
            refused += 1
            if "error" not in reply:
                wrong.append((template, messages, expected, reply))
        elif reply.get("rendered") != expected:
            wrong.append((template, messages, expected, reply))
        elif tokenizer and reply["ids"] != oracle.encode(tokenizer, expected):
            wrong.append((template, messages, "ids", reply))
        else:
            equal += 1
    return wrong, equal, refused


CASES = [(messages, generate) for messages in conversations() for generate in (False, True)]


@pytest.fixture(scope="module")
def fields():
    return oracle.Fields()


def test_the_models_own_template_and_its_ids(fields):
    wrong, equal, _ = compare(
        fields.chat_template, CASES, fields.tokenizer(), own=True, bos=fields.bos, eos=fields.eos
    )
    assert wrong == [] and equal == len(CASES)


@pytest.mark.parametrize("family", chat_templates.FAMILIES)
def test_templates_of_public_families(fields, family):
    template = chat_templates.FAMILIES[family]
    wrong, equal, refused = compare(template, CASES, fields.tokenizer())
    assert wrong == []
    assert equal > len(CASES) / 3, (equal, refused)


def test_every_part_of_the_language():
    messages = conversations()[0] + [{"role": "assistant", "content": "second"}]
    templates = ["<" + "{{ " + e + " }}" + ">" for e in chat_templates.EXPRESSIONS]
    templates += chat_templates.STATEMENTS
    requests = [
        {"template": t, "messages": messages, "bos_token": BOS, "eos_token": EOS} for t in templates
    ]
    wrong, equal = [], 0
    for template, reply in zip(templates, oracle.ask(requests)):
        expected = reference(template, messages, False, BOS, EOS)
        if isinstance(expected, Exception):
            good = "error" in reply
        else:
            good = reply.get("rendered") == expected
            equal += good
        if not good:
            wrong.append((template, expected, reply))
    assert wrong == []
    assert equal > 200


def test_a_users_control_tokens_stay_text(fields):
    """Ids of the model's template built by hand, the users' parts by a tokenizer that knows no control tokens."""
    plain = fields.tokenizer(with_special=False)
    start, end = fields.tokens.index("<|im_start|>"), fields.tokens.index("<|im_end|>")
    rng = random.Random(2)
    pieces = [*fields.special, "<|im_", "end|>", "Hi", " ", "\n", "system\n", "<", "|>", "12"]
    requests, expected = [], []
    for _ in range(300):
        messages = [{"role": "system", "content": "Be brief."}]
        for turn in range(rng.randint(1, 4)):
            content = "".join(rng.choice(pieces) for _ in range(rng.randint(0, 8)))
            messages.append({"role": ("user", "assistant")[turn % 2], "content": content})
        ids = []
        for message in messages:
            ids += [start, *oracle.encode(plain, message["role"] + "\n" + message["content"]), end]
            ids += oracle.encode(plain, "\n")
        ids += [start, *oracle.encode(plain, "assistant\n")]
        requests.append({"messages": messages, "generate": True})
        expected.append(ids)
    replies = oracle.ask(requests)
    assert [reply["ids"] for reply in replies] == expected
    # The template's own text counts as nobody's: only contents are marked.
    for request, reply in zip(requests, replies):
        assert "".join(reply["user"]) == "".join(m["content"] for m in request["messages"][1:]) or (
            "".join(reply["user"]) == "".join(m["content"] for m in request["messages"])
        )


def test_what_cannot_be_rendered_is_named():
    messages = [{"role": "user", "content": "x"}]
    cases = {
        "{% macro f() %}{% endmacro %}": "macro",
        "{{ messages | map(attribute='role') }}": "'map'",
        "{{ 1.5 }}": "not an integer",
        "{{ {'a': 1} }}": "dictionary",
        "{{ 'a'.title() }}": "'title'",
        "{{ strftime_now('%Y') }}": "strftime_now",
        "{% include 'x' %}": "include",
        "{{ messages | tojson(indent=2) }}": "indent",
        "{{ 4 / 2 }}": "operator /",
        "{% raw %}{{{% endraw %}": "raw",
    }
    replies = oracle.ask([{"template": t, "messages": messages} for t in cases])
    for (template, name), reply in zip(cases.items(), replies):
        assert reply.get("code") == "UNIMPLEMENTED", (template, reply)
        assert name in reply["error"] and "text or token_ids" in reply["error"], reply
