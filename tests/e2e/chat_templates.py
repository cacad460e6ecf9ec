"""Chat templates of public model families, and small ones that each use one part of the language."""

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

LLAMA_3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
    "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)

LLAMA_3_1 = r"""{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- This block extracts the system message, so we can slot it into the right place. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{#- System message + builtin tools #}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\n\n"}}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\n" }}
{{- "Today Date: " + date_string + "\n\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {{- "You have access to the following functions. To call a function, please respond with JSON for a function call." }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% else %}"
    "{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)

MISTRAL_NEWER = r"""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- This block checks for alternating user/assistant messages, skipping tool calling messages #}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant/user/assistant/...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}

{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"""

ZEPHYR = r"""{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

PHI_3 = (
    "{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\n' + message['content'] + '<|end|>\n'}}"
    "{% else %}{{'<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)

GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception("
    "'Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if (message['role'] == "
    "'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + "
    "role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{'<start_of_turn>model\n'}}{% endif %}"
)

QWEN_2_5 = r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}
        {{- messages[0]['content'] }}
    {%- else %}
        {{- 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}
    {%- endif %}
    {{- "\n\n# Tools\n\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.arguments | tojson }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

QWEN_3 = r"""{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning_content.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""

LLAMA_2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]"
    "['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
    "{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception("
    "'Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 and "
    "system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[INST] '"
    " + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + "
    "eos_token }}{% endif %}{% endfor %}"
)

FAMILIES = {
    "chatml": CHATML, "llama-2": LLAMA_2, "llama-3": LLAMA_3, "llama-3.1": LLAMA_3_1, "mistral": MISTRAL,
    "mistral-newer": MISTRAL_NEWER, "zephyr": ZEPHYR, "phi-3": PHI_3, "gemma": GEMMA, "qwen-2.5": QWEN_2_5,
    "qwen-3": QWEN_3,
}  # fmt: skip

# Each is rendered as it stands. `c` in braces below stands for the first message's content.
C = "messages[0].content"
EXPRESSIONS = [
    "1 + 2 * 3", "7 // 2", "-7 // 2", "7 % 3", "-7 % 3", "7 % -3", "2 - 3 - 4", "(2 - 3) * 4", "-3 | string", "1 ~ 2 ~ none",
    "1 == 1", "1 == true", "0 == false", "'1' == 1", "none == none", "1 < 2 < 3", "3 > 2 > 2", "'a' < 'b'", "'é' > 'z'",
    "1 <= 1 != 2", "not 1 == 2", "not true or true", "true and 'x'", "'' or 'y'", "0 and missing", "'a' if true else 'b'",
    "'a' if false else 'b'", "'a' if false", "'a' if 0 else 'b' if 0 else 'c'", "'x' in 'xyz'", "'q' not in 'xyz'",
    "1 in [1, 2]", "3 not in (1, 2)", "'role' in messages[0]", "'tools' in messages[0]", "[] or 'empty'", "missing",
    "missing is defined", "missing is not defined", "not missing is defined", "tools is none", "tools is defined",
    "messages is iterable", "messages is sequence", "messages[0] is mapping", "messages is mapping", "1 is number",
    "true is number", "true is boolean", "true is integer", "1 is integer", "'a' is string", "true is true", "1 is true",
    "false is false", "4 is even", "4 is odd", "missing is undefined", "missing.foo", "missing['a']", "missing + 'a'",
    "missing ~ 'a'", "missing == missing2", "none + 'a'", "1 + 'a'", "'a' + 1", "'x' in missing", "'x' in none", "1 < 'a'",
    "messages[0].missing", "messages[0]['missing']", "messages[9]", "messages[-1].role", "messages[0].get('role')",
    "messages[0].get('x')", "messages[0].get('x', 'd')", "messages[0].missing is defined", "messages | length",
    "messages | count", "missing | length", "5 | length", "messages[1:] | length", "messages[:-1] | length",
    "messages[::-1][0].role", "messages[5:] | length", "[1, 2, 3][0]", "[1, 2, 3][-1]", "[1, 2, 3] | join('-')",
    "[1, 'a', none, true] | join", "[1] + [2] | join(',')", "([1] + [2]) | join(',')", "'abc'[1]", "'abc'[-1]", "'abc'[5]",
    "'äöü'[1]", "'äöü'[1:]", "'äöü'[::-1]", "'abcdef'[1:5:2]", "'abcdef'[5:1:-2]", "'abcdef'[-3:]", "'abc'[:none]",
    "'abcdef'[::3]", "'abcdef'[:100:50]", "'abcdef'[10:0:-50]", "'äöü' | length", "' a ' | trim", "'xxaxx' | trim('x')",
    "none | trim", "5 | trim", "missing | trim", "'aB' | upper", "'aB' | lower", "'aB'.upper()", "'aB'.lower()",
    "'\\u2003a\\x85'.strip()", "' a '.lstrip() + '|'", "'|' + ' a '.rstrip() + '|'", "'abcab'.strip('ab')",
    "'abcab'.strip('')", "'abcab'.lstrip('ab')", "'a,b,,c'.split(',') | join('|')", "' a  b '.split() | join('|')",
    "'a b c'.split(' ', 1) | join('|')", "' a  b  c '.split(none, 1) | join('|')", "''.split() | length", "''.split(',') | length",
    "'abc'.startswith('ab')", "'abc'.endswith('bc')", "'abc'.startswith('')", "'a.b.c'.replace('.', '--')",
    "'a.b.c' | replace('.', '')", "messages[0] | tojson", "[1, 'a\"\\\\\\n\\t\\x01\\x7fé', none, true, [], 'x'] | tojson",
    "missing | default('d')", "'' | default('d')", "'' | default('d', true)", "'' | d('d', boolean=true)", "none | default('d')",
    "missing | default", "[3, 4] | first", "[3, 4] | last", "[] | first", "'xy' | first", "'abc' | list | join('.')",
    "'a' 'b' \"c\"", "'it\\'s'", "\"q\\\"q\"", "'\\x41\\u00e9\\U0001F600\\101\\d'", "'a\\\nb'", "'%}'", "'{{'", "true", "True", "none",
    "None", "false", "1_000", f"{C}", f"{C} | trim", f"{C}.split('a') | join('<>')", f"{C}[2:7]", f"{C}[::-1]", f"{C} | tojson",
    f"{C}.replace('a', 'bb')", f"{C} ~ {C}", f"{C} | length", f"'e' in {C}", f"{C}.split() | last", f"[{C}, 1] | join(', ')",
    f"{C}.strip() == {C} | trim", "loop", "raise_exception('no: ' ~ 1)", "bos_token + eos_token", "bos_token | length",
    "namespace(a=1).a", "namespace(a=1).b", "(1, 2) | join", "(1,) | join", "() | length", "[1, 2,] | length", "'a' is defined and 1",
    "1 is not none", "(messages | first).role", "messages[0]['con' ~ 'tent'] | length", "5 // 0", "5 % 0", "- 5 + 3", "--5",
    "1 if missing else 2", "missing.x is defined", "'a' * missing", "messages[0].role.upper()", "'abc'.upper()[0] ~ 'abc'[1:]",
]  # fmt: skip

STATEMENTS = [
    "a\n{% if true %}\nb\n{% endif %}\nc\n", "a\n  {% if true %}  \nb\n  {% endif %}\nc", "a {%- if true -%} b {%- endif -%} c",
    "a  {%+ if true +%}\nb{% endif %}", "  {% if 1 %}x{% endif %}", "x  {% if 1 %}y{% endif %}", "\n\n  {%- if 1 %}\n\nz{% endif -%}\n\n",
    "{{ 'a' }}\n{{ 'b' }}\n", "{{ 'a' -}}\n  {{- 'b' }}\n\n", "  {{ 1 }}  ", "a\n  {# c #}\nb", "a {#- c -#} b", "a\n{#c#}\n\nb", "{##}x{#-#}y",
    "{# {{ 1 }} {% if %} #}z", "a\r\nb\rc\r\n", "a\n\n", "\n", "", "{", "{ {", "a{b}c", "}} %} #}", "{{ '}}' }}", "{% if '%}' %}1{% endif %}",
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }};{% endfor %}",
    "{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined else '-' }}>{{ loop.nextitem.role if loop.nextitem is defined else '-' }} {% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.content }}{% else %}none{% endfor %}",
    "{% for m in messages if m.role == 'nobody' %}x{% else %}none{% endfor %}", "{% for m in [] %}x{% else %}e{% endfor %}",
    "{% for m in missing %}x{% else %}e{% endfor %}", "{% for c in 'äbc' %}{{ c }}-{% endfor %}", "{% for k in messages[0] %}{{ k }} {% endfor %}",
    "{% for a in [1,2] %}{% for b in [3,4] %}{{ a }}{{ b }}{{ loop.index }} {% endfor %}{{ loop.index }}|{% endfor %}", "{% for x in 5 %}{% endfor %}",
    "{% for x in none %}{% endfor %}", "{% set x = 1 %}{% for i in [1,2] %}{{ x }}{% set x = 5 %}{{ x }}{% endfor %}{{ x }}",
    "{% for i in [1,2] %}{% if i == 1 %}{% set y = i %}{% endif %}{{ y is defined }}{% endfor %}", "{% for i in [1,2] %}{% endfor %}{{ i is defined }}",
    "{% if true %}{% set z = 3 %}{% endif %}{{ z }}", "{% set ns = namespace(n=0, t='') %}{% for m in messages %}{% set ns.n = ns.n + loop.index %}{% set ns.t = ns.t + m.content %}{% endfor %}{{ ns.n }}{{ ns.t }}",
    "{% set ns.x = 1 %}", "{% set m = messages[0] %}{% set m.x = 1 %}", "{% for i in [1,2,3,4] %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in [1,2] %}{% for j in [1,2] %}{% if j == 2 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfor %}",
    "{% if 0 %}a{% elif '' %}b{% elif [] %}c{% elif none %}d{% elif missing %}e{% else %}f{% endif %}", "{% if 0 %}a{% elif 1 %}b{% else %}c{% endif %}",
    "{% if messages[0].role in ['user', 'system'] %}yes{% endif %}", "{% if not messages %}no{% else %}some{% endif %}", "{% set a = 'x' if false else 'y' %}{{ a }}",
    "{% set t = (1, 2) %}{{ t[1] }}", "{% if %}", "{% endif %}", "{% for %}", "{{ }}", "{{ 1", "{% if 1 %}", "{# x", "{{ 'a }}", "{% for x in [1] %}{% else %}", "{{ 1 2 }}", "{{ a. }}",
    "{{ [1, }}", "{{ (1 }}", "{{ 'a' | }}", "{{ x is }}", "{% set %}", "{% set x %}", "{% nothing %}", "{% if 1 %}{% endfor %}", "{{ ?1 }}", "{% else %}", "{% break %}",
    "{%- for m in messages -%}\n  {{- m.role }}: {{ m.content -}}\n{%- endfor %}\n", "  {%- set a = 1 %}  \n  {{ a }}\n", "{% for m in messages %}\n{{ m.role }}\n{% endfor %}\n", "x\n    {%- if 1 %}\n    y\n    {%- endif %}\n",
    "{%if 1%}a{%endif%}", "{{1}}{{-2}}", "{{- -2}}", "{{ 1 -}} {{ 2 }}", "{%- if 1 -%}\u2003 x \u00a0{%- endif -%}\u3000", "{% set loop = 3 %}{{ loop }}",
    "{% for m in messages %}{% set loop_i = loop.index %}{% for n in [1] %}{{ loop_i }}{{ m.role }}{% endfor %}{% endfor %}", "{% set messages = messages[1:] %}{{ messages | length }}",
    "{% for m in messages[:1] %}{% set messages = [] %}{{ messages | length }}{% endfor %}{{ messages | length }}",
]  # fmt: skip
