#!/usr/bin/env python3
"""Writes what Jinja gives for chat templates, set up as in Hugging Face transformers (_compile_jinja_template).

    make_chat_template_vectors.py                        writes tests/gpu/text/chat_template_vectors.json
    make_chat_template_vectors.py --random COUNT SEED    prints cases of random templates and contexts
    make_chat_template_vectors.py --templates FOLDER     prints cases of every *.jinja there over the conversations

The printed files are for one run: SEER_CHAT_TEMPLATE_CASES=<file> seer_gpu_tests --source-file='*chat_template_test.cpp'.
Needs python3-jinja2 (3.1). The time is always that of vector_time() in chat_template_test.cpp.
"""
import datetime
import json
import pathlib
import random
import sys
import warnings

import jinja2
import jinja2.ext
import jinja2.sandbox

HERE = pathlib.Path(__file__).resolve().parent
NOW = datetime.datetime(2024, 7, 26, 14, 5, 9)


class AssistantTracker(jinja2.ext.Extension):
    """{% generation %}: renders its body; transformers also notes where it was."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_generation_support"), [], [], body).set_lineno(line)

    @jinja2.pass_eval_context
    def _generation_support(self, context, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(format):
    return NOW.strftime(format)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[AssistantTracker, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


ENV = environment()
warnings.simplefilter("ignore")  # Python's compiler on random templates


def case(name, text, context):
    """One case: what is expected, or that there is an error, whose words are only for the reader."""
    made = {"template": name, "context": context}
    try:
        expected = ENV.from_string(text).render(**json.loads(json.dumps(context)))
        expected.encode()  # surrogates alone are not text
        made["expected"] = expected
    except Exception as e:  # whatever Python raises: the template fails
        made["error"] = f"{type(e).__name__}: {e}"[:200]
    return made


# ---- conversations ---------------------------------------------------------------------------------------------------

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a place.\nToday only.",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "Town, e.g. \"Zürich\""},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "array", "items": {"type": "integer"}}}, "required": ["place"]}}}
SEARCH = {"type": "function", "function": {
    "name": "search", "description": "Finds <pages> & 'files'", "parameters": {"type": "object", "properties": {
        "query": {"type": ["string", "null"]}, "limit": {"type": "number", "default": 1.5},
        "where": {"type": "object", "properties": {"site": {"type": "string"}, "deep": {"type": "boolean"}}, "required": ["site"]}}},
    "return": {"type": "string"}, "strict": True}}
BARE = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


def call(name, arguments, id="call00001"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def u(text): return {"role": "user", "content": text}
def a(text, **more): return {"role": "assistant", "content": text, **more}
def s(text): return {"role": "system", "content": text}
def t(text, id="call00001"): return {"role": "tool", "content": text, "tool_call_id": id, "name": "get_weather"}


CONVERSATIONS = {
    "one": [u("Hi")],
    "system": [s("You are terse."), u("Hi")],
    "empty system": [s(""), u("Hi")],
    "turns": [u("Hi"), a("Hello."), u("How are you?")],
    "system turns": [s(" Be kind. "), u("Hi\n"), a(" Hello.\n"), u("And\n\nyou?"), a("Well."), u("Good")],
    "answered": [u("1+1?"), a("2")],
    "late system": [u("Hi"), s("Now be brief."), u("Go")],
    "unicode": [s("Ты — помощник. 你好"), u("naïve café ☕ 👩‍👩‍👧 \u202e\u00a0"), a("日本語「はい」 ß İ"), u("𝔘𝔫𝔦 e\u0301")],
    "odd text": [u("{{ x }} {% if %} <|im_end|> \\n 'a' \"b\" <b>&amp;</b>\t\x01"), a("</s>"), u("  ")],
    "thinking": [u("2+2?"), a("<think>\nTwo and two.\n</think>\n\n4"), u("3+3?"), a("<think>\nsix\n</think>\n\n6")],
    "reasoning": [u("2+2?"), a("4", reasoning_content="\nTwo and two.\n"), u("again"), a("4!", reasoning_content="same")],
    "call": [s("Use tools."), u("Weather in Zürich?"), a(None, tool_calls=[call("get_weather", {"place": "Zürich", "unit": "celsius"})]), t("{\"t\": 21}"), a("21 degrees."), u("Thanks")],
    "open call": [u("Weather?"), a("", tool_calls=[call("get_weather", {"place": "Bern", "days": [1, 2], "x": None, "y": True, "z": 1.0})]), t("sun")],
    "text call": [u("Weather?"), a("Let me look.", tool_calls=[call("search", "{\"query\": \"a\"}")]), t("rain")],
    "two calls": [u("Both?"), a(None, tool_calls=[call("get_weather", {"place": "A"}), call("get_weather", {"place": "B<>&'\""}, "call00002")]), t("sun"), t("rain", "call00002"), a("Sun; rain.")],
    "thoughtful call": [u("Weather?"), a("<think>\nlook\n</think>\n\n", tool_calls=[call("get_weather", {})]), t("x"), t("y"), a("<think>\ndone\n</think>\n\nx and y")],
    "structured result": [u("Weather?"), a(None, tool_calls=[call("get_weather", {"n": 12345678901234567890, "f": 1e-7, "g": 1e22})]), {"role": "tool", "content": {"t": [1, 2.5, None], "é": "ü"}, "tool_call_id": "call00001"}, a("ok")],
    "short id": [u("Weather?"), a(None, tool_calls=[call("get_weather", {}, "c1")]), t("x", "c1")],
    "parts": [s([{"type": "text", "text": "See."}]), u([{"type": "image"}, {"type": "text", "text": " What is this? "}]), a([{"type": "text", "text": "A cat."}])],
    "same role": [u("Hi"), u("Anyone?")],
    "assistant first": [a("Hello."), u("Hi")],
    "strange role": [u("Hi"), {"role": "critic", "content": "hm"}, u("Go")],
    "no content": [u("Hi"), {"role": "assistant"}, u("Go")],
    "nobody": [],
    "long": [m for i in range(12) for m in (u(f"Question {i} {'é' * i}"), a(f"Answer {i}"))],
}
EXTRAS = [
    {"add_generation_prompt": True, "tools": None},
    {"add_generation_prompt": False},
    {"add_generation_prompt": True, "tools": [WEATHER, SEARCH, BARE], "enable_thinking": False},
    {"add_generation_prompt": False, "tools": [SEARCH], "tools_in_user_message": False, "date_string": "1 Jan 2030", "enable_thinking": True},
    {"add_generation_prompt": True, "custom_tools": [BARE], "builtin_tools": ["get_weather", "code_interpreter", "search"]},
    {"add_generation_prompt": True, "tools": [], "documents": [{"title": "A", "text": "b"}]},
]


TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def conversation_cases(templates):
    """Each names its conversation and its extra fields, which the file holds once."""
    cases = []
    for name, text in templates.items():
        for i, (conversation, messages) in enumerate(CONVERSATIONS.items()):
            for j, extra in enumerate(EXTRAS):
                if j >= 4 and (i + j) % 2:
                    continue
                made = case(name, text, {"messages": messages, **TOKENS, **extra})
                del made["context"]
                cases.append({**made, "conversation": conversation, "extra": j})
    return cases


def document(templates, cases):
    extras = [{**TOKENS, **extra} for extra in EXTRAS]
    return {"templates": templates, "conversations": CONVERSATIONS, "extras": extras, "cases": cases}


# ---- single constructs -----------------------------------------------------------------------------------------------

VALUES = {
    "n": 7, "f": 2.5, "t": "Hello, Wörld", "e": "", "l": [3, 1, 2], "d": {"b": 1, "a": [1, {"x": None}], "items": "mine"},
    "m": [{"role": "user", "content": "a", "k": 2}, {"role": "tool", "content": "b", "k": 1}, {"role": "User", "k": 3}],
    "z": None, "y": True, "w": "  a b\tc \n", "big": 9007199254740993, "u64": 18446744073709551615,
}
SNIPPETS = r"""
{{ 1 + 2 * 3 - 4 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7.5 % -2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 }}
{{ 1e16 }} {{ 1e15 }} {{ 0.0001 }} {{ 0.00001 }} {{ 1.0 }} {{ 1/3 }} {{ 100 * 1.1 }} {{ 1_000 }} {{ 0x1f }} {{ 0b11 }} {{ 1e400 }}
{{ t ~ n ~ z ~ y ~ f ~ l ~ d }}
{{ [1, 'a', "it's", 'q"', none, true, 1.5, (1,), (), {}, {'k': [1]}, 'é\n\x00\u200b'] }}
{{ t[0] }}{{ t[-1] }}{{ t[7:] }}{{ t[:-2] }}{{ t[::-1] }}{{ t[::2] }}{{ t[8:2:-2] }}{{ t[100] }}{{ t[5:100] }}{{ t[-100:3] }}
{{ l[::-1] }}{{ l[1:] }}{{ l[:1] }}{{ l[-2:] }}{{ l[5:] }}{{ l[9] }}{{ (1,2,3)[::-1] }}{{ l[::-2] }}
{{ l[0:1:0] }}
{{ t.upper() }}{{ t.lower() }}{{ t.title() }}{{ 'straße ΑΣ σ'.upper() }}{{ 'ΑΣ ΣΑ'.lower() }}{{ 'aé b-c d'.capitalize() }}{{ "they're bill's".title() }}{{ "they're (bill's) a-b"|title }}
{{ w.strip() }}|{{ w.lstrip() }}|{{ w.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'ab12ba'.strip('ab') }}|{{ 'éaé'.lstrip('é') }}|{{ w|trim }}|{{ 'xax'|trim('x') }}
{{ w.split() }}{{ 'a,b,,c'.split(',') }}{{ 'a,b,c'.split(',', 1) }}{{ ' a  b c '.split(none, 1) }}{{ ''.split() }}{{ ''.split(',') }}{{ 'abc'.split('</x>')[-1] }}
{{ 'a b c'.rsplit(' ', 1) }}{{ ' a  b c '.rsplit(none, 1) }}{{ 'a,b'.rsplit(',') }}{{ 'a\nb\r\nc\n\nd'.splitlines() }}{{ 'a\nb'.splitlines(true) }}{{ 'a=b=c'.partition('=') }}{{ 'a=b=c'.rpartition('=') }}
{{ t.startswith('He') }}{{ t.startswith(('x', 'H')) }}{{ t.endswith('ld') }}{{ t.find('ö') }}{{ t.rfind('l') }}{{ t.count('l') }}{{ t.index('W') }}{{ t.replace('l', 'L', 1) }}{{ 'aaa'.replace('a', '') }}{{ 'ab'.replace('', '-') }}
{{ ', '.join(['a', 'b']) }}{{ 'a'.join('xyz') }}{{ '7'.zfill(3) }}{{ '-7'.zfill(4) }}{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '.') }}|{{ 'ab'.center(5, '*') }}|{{ 'abc'.center(6, '*') }}
{{ 'abc'.removeprefix('a') }}{{ 'abc'.removesuffix('c') }}{{ '12'.isdigit() }}{{ 'aB'.swapcase() }}{{ 'ab'.isalpha() }}{{ ' '.isspace() }}{{ 'aB1'.isalnum() }}{{ 'ab'.islower() }}{{ 'A1'.isupper() }}{{ 'A'.isascii() }}{{ t.isalpha() }}{{ '日本'.isalpha() }}{{ '٣'.isdigit() }}{{ 'é½'.isalnum() }}{{ 'é a_½ ́x'|wordcount }}{{ t.isdigit() }}
{{ '{} {1} {name}'.format(1, name=2) }}
{{ '{} {} {name} {{}} {!r}'.format(1, 'a', 'b', name=2) }}{{ '%s %d %.2f %5s|%-5s|%05d %x %%' % ('a', 7, 1.005, 'b', 'c', 42, 255) }}{{ '%s' % 'x' }}{{ '%(a)s' % {'a': 1} }}{{ '%s-%s'|format('a', 2) }}
{{ '%d' % 'a' }}
{{ '%s %s' % 'a' }}
{{ d.items() }}{{ d.items is callable }}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{{ d.keys()|list }}{{ d.values()|list }}{{ d.get('q') }}{{ d.get('q', 1) }}{{ d['items'] }}
{{ d|tojson }}{{ d|tojson(indent=2) }}{{ d|tojson(2) }}{{ d|tojson(sort_keys=true) }}{{ d|tojson(separators=(',', ':')) }}{{ 'é<>&\'"\\/\u2028\x7f'|tojson }}{{ 'é😀\x7f'|tojson(ensure_ascii=true) }}
{{ [1, 2.0, 1e16, none, true, 'a', [], {}, (1, 2)]|tojson }}{{ [[], {}, [1]]|tojson(indent=1) }}{{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }}{{ d|tojson(indent='--') }}{{ [1]|tojson(indent=0) }}{{ u64|tojson }}{{ big }}
{{ (1, 2)|tojson(indent=true) }}
{{ nope|tojson }}
{{ range|tojson }}
{{ l|length }}{{ t|length }}{{ d|count }}{{ nope|length }}{{ (1,2)|length }}{{ 'é😀'|length }}
{{ n|length }}
{{ l|join }}{{ l|join(', ') }}{{ m|join('-', attribute='content') }}{{ 'abc'|join('.') }}{{ [1, none, 'a', 2.0]|join(',') }}{{ nope|join }}
{{ m|map(attribute='role')|list }}{{ m|map(attribute='content', default='?')|list }}{{ l|map('string')|join }}{{ ['a ', ' b']|map('trim')|list }}{{ ['a', 'b']|map('upper')|join('/') }}{{ ['a']|map('replace', 'a', 'b')|list }}
{{ m|selectattr('role', 'equalto', 'user')|list|length }}{{ m|rejectattr('role', 'eq', 'user')|map(attribute='k')|list }}{{ m|selectattr('content')|list|count }}{{ m|selectattr('content', 'defined')|list|count }}{{ m|selectattr('role', 'in', ['tool', 'User'])|map(attribute='k')|sum }}
{{ l|select('odd')|list }}{{ l|reject('odd')|list }}{{ [0, 1, '', 'a']|select|list }}{{ l|select('gt', 1)|list }}{{ l|select('in', [1, 2])|list }}{{ l|select('divisibleby', 3)|list }}
{{ m|selectattr('role', 'equalto', 'user')|first }}{{ (m|selectattr('role', 'equalto', 'user')|list)[0].content }}{% if m|selectattr('role', 'equalto', 'x') %}always{% endif %}
{{ m|selectattr('role')|length }}
{{ m|selectattr('role', 'nope')|list }}
{% if m|selectattr('role', 'nope') %}lazy{% endif %}
{{ l|first }}{{ l|last }}{{ t|first }}{{ t|last }}{{ []|first }}{{ []|last }}{{ d|first }}{{ d|last }}{{ ''|first }}
{{ l|sort }}{{ l|sort(reverse=true) }}{{ ['b', 'A', 'c']|sort }}{{ ['b', 'A', 'c']|sort(case_sensitive=true) }}{{ m|sort(attribute='k')|map(attribute='k')|list }}{{ d|dictsort }}{{ {'b': 1, 'A': 2}|dictsort(true) }}{{ {'b': 1, 'a': 2}|dictsort(by='value') }}
{{ l|max }}{{ l|min }}{{ ['a', 'B']|max }}{{ []|max }}{{ m|max(attribute='k') }}{{ l|sum }}{{ l|sum(start=10) }}{{ [1, 'a']|sort }}
{{ l|reverse|list }}{{ t|reverse }}{{ ['a', 'A', 'b']|unique|list }}{{ ['a', 'A']|unique(case_sensitive=true)|list }}{{ l|batch(2)|list }}{{ l|batch(2, 0)|list }}
{{ n|default(1) }}{{ nope|default(1) }}{{ nope|d }}{{ e|default('x') }}{{ e|default('x', true) }}{{ z|default('x') }}{{ z|default('x', boolean=true) }}{{ d.q|default('q') }}{{ d.q.r|default('q') }}
{{ t|upper }}{{ t|lower }}{{ t|capitalize }}{{ t|replace('l', 'L') }}{{ t|replace('l', 'L', 2) }}{{ n|string + 'a' }}{{ n|replace(7, 8) }}{{ none|upper }}{{ l|upper }}
{{ 'a\nb\n\nc'|indent }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\n\nb'|indent(2, blank=true) }}|{{ 'a\nb'|indent('> ') }}|{{ ''|indent }}|{{ 'a\n'|indent(first=true) }}
{{ '7'|int }}{{ '7.9'|int }}{{ 'x'|int }}{{ 'x'|int(5) }}{{ '0x1f'|int(base=16) }}{{ 7.9|int }}{{ none|int(3) }}{{ '1e3'|int }}{{ true|int }}{{ ' 4 '|int }}{{ '1_0'|int }}{{ '2.5'|float }}{{ 'x'|float }}{{ 'x'|float(1.5) }}{{ 3|float }}{{ '1e5'|float }}{{ 'nan'|float }}{{ '-inf'|float }}
{{ 2.5|round }}{{ 3.5|round }}{{ 2.675|round(2) }}{{ 2.1|round(0, 'ceil') }}{{ 2.9|round(method='floor') }}{{ 7|round }}{{ 1234.5|round(-2) }}{{ -3|abs }}{{ -2.5|abs }}
{{ '<a>'|e }}{{ '<a>'|safe }}{{ '<a>'|e|e }}{{ '<a>'|safe|forceescape }}{{ ('<a>'|safe) + '<b>' }}{{ '<b>' + ('<a>'|safe) }}{{ ('<a>'|safe) ~ '<b>' }}{{ ['<a>'|safe] }}{{ ('<a>'|safe)|tojson }}{{ 'a b&c/é'|urlencode }}
{{ 'a b c_d'|wordcount }}{{ d|items|list }}{{ nope|items|list }}{{ d|attr('items') is callable }}{{ d|attr('b') }}{{ d|attr('b') is defined }}{{ [1]|string|list }}{{ d|list }}{{ 'ab'|list }}{{ nope|list }}
{{ 1|items|list }}
{{ 1 < 2 < 3 }}{{ 1 < 2 > 3 }}{{ 1 == 1.0 }}{{ true == 1 }}{{ 'a' < 'b' }}{{ [1, 2] < [1, 3] }}{{ 'a' in t }}{{ 'l' in t }}{{ 3 in l }}{{ 'b' in d }}{{ 9 not in l }}{{ 'x' in nope }}{{ nope == nopenope }}{{ none == nope }}{{ 1 != 2 }}{{ (1, 2) == [1, 2] }}
{{ 1 < 'a' }}
{{ 1 in 'a' }}
{{ 1 in n }}
{{ [] in d }}
{{ not true }}{{ not [] }}{{ 1 and 2 }}{{ 0 or 'a' }}{{ '' and 1 }}{{ 0 and nope.x }}{{ 1 or nope.x }}{{ not n == 7 }}{{ n if y }}{{ n if not y }}{{ n if not y else 'b' }}{{ 1 if 0 else 2 if 0 else 3 }}
{{ nope.x }}
{{ nope[0] }}
{{ nope() }}
{{ nope + 1 }}
{{ z.x }}{{ n.x }}{{ n['x'] }}{{ t.x }}{{ l.x }}{{ l['x'] }}{{ d.x }}{{ d['x'] }}{{ d[1] }}{{ z['x'] }}{{ d.a[1].x }}{{ d.a.1.x }}{{ l.0 }}
{{ d.x.y }}
{{ z.x.y }}
{{ t.nope() }}
{{ t.__class__ }}{{ d.__class__ }}{{ d.pop }}{{ l.append }}{{ d._x }}
{{ l.append(1) }}
{{ d.update({}) }}
{{ n is defined }}{{ nope is defined }}{{ nope is undefined }}{{ z is none }}{{ z is not none }}{{ n is not none }}{{ t is string }}{{ n is string }}{{ d is mapping }}{{ l is mapping }}{{ l is iterable }}{{ t is iterable }}{{ n is iterable }}{{ z is iterable }}{{ nope is iterable }}{{ l is sequence }}{{ d is sequence }}{{ t is sequence }}{{ n is sequence }}{{ nope is sequence }}
{{ n is number }}{{ y is number }}{{ f is number }}{{ n is integer }}{{ y is integer }}{{ f is float }}{{ y is boolean }}{{ n is boolean }}{{ y is true }}{{ 1 is true }}{{ false is false }}{{ 0 is false }}{{ n is odd }}{{ n is even }}{{ n is divisibleby 7 }}{{ n is divisibleby(2) }}{{ 'a' is lower }}{{ 'A' is upper }}{{ range is callable }}{{ t.upper is callable }}{{ n is callable }}
{{ n is equalto 7 }}{{ n is eq(7) }}{{ n is ne 7 }}{{ n is gt 6 }}{{ n is lt 6 }}{{ n is ge 7 }}{{ n is le 7 }}{{ n is in [7] }}{{ 'a' is in 'abc' }}{{ n is not in [7] }}{{ z is sameas none }}{{ 'upper' is filter }}{{ 'odd' is test }}{{ n is not defined }}{{ not n is defined }}{{ n is == 7 }}
{{ n is odd and y }}{{ n is none or true }}{{ n is odd if y else 1 }}{{ 1 if n is string else 2 }}{{ l is iterable and l is not string }}{{ n is defined == true }}
{{ range(3)|list }}{{ range(1, 3)|list }}{{ range(5, 0, -2)|list }}{{ range(3) }}{{ range(0)|length }}{{ range(3)[1] }}{{ range(5)[1:3]|list }}{{ 2 in range(3) }}{{ range(3)|last }}{{ range(10)|reverse|first }}
{{ range(1, 2, 0) }}
{{ dict(a=1, b=2) }}{{ dict({'a': 1}, b=2) }}{{ dict([('a', 1)]) }}{{ {'a': 1, 'a': 2} }}{{ {'x': 1}.x }}{{ {} }}{{ {'a': 1,} }}{{ [1,] }}{{ (1) }}{{ (1,) }}
{{ [1] + [2] }}{{ (1,) + (2,) }}{{ 'ab' * 2 }}{{ [1] * 2 }}{{ 2 * 'x' }}{{ 'a' * -1 }}{{ 'a' 'b' }}{{ 1, 2 }}{{ true + 1 }}
{{ 'a' + 1 }}
{{ [1] + (2,) }}
{{ 1 / 0 }}
{{ 'a' - 'b' }}
{% set a = 1 %}{{ a }}{% set a, b = 2, 3 %}{{ a }}{{ b }}{% set (a, b) = [4, 5] %}{{ a }}{% set c %}x{{ a }}{% endset %}{{ c }}{% set c | upper | trim %} y {% endset %}{{ c }}
{% set a, b = 1 %}
{% set a, b = [1, 2, 3] %}
{% set ns = namespace(a=1, b='x') %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns.c is defined }}{% set ns.c = 3 %}{{ ns.c }}{{ ns['a'] }}
{% set d.x = 1 %}
{% set nope.x = 1 %}
{% for i in range(3) %}{% set q = i %}{{ q }}{% endfor %}{{ q is defined }}{% set q = 9 %}{% for i in [1] %}{{ q }}{% set q = 5 %}{{ q }}{% endfor %}{{ q }}
{% if true %}{% set q = 1 %}{% endif %}{{ q }}{% if false %}{% set n = 2 %}{% endif %}{{ n }}
{% for x in l %}{{ t }}{% endfor %}{% set t = 1 %}{{ t }}
{{ t }}{% for x in l %}{{ t }}{% endfor %}{% set t = 1 %}{{ t }}
{% if y %}{% set t = 1 %}{% endif %}{{ t }}{% if not y %}{% set f = 1 %}{% else %}{{ f }}{% endif %}{{ f }}
{% for x in l %}{% for i in l %}{{ t }}{% endfor %}{% set t = x %}{{ t }}{% endfor %}{{ t }}
{% macro g() %}{{ t }}{% set t = 2 %}{{ t }}{% endmacro %}{{ g() }}{% macro h() %}{% set t = 2 %}{{ t }}{% endmacro %}{{ h() }}{{ t }}
{% set ns = namespace(found=false) %}{% for x in l %}{% if x == 1 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}
{% for x in [] %}a{% else %}none{% endfor %}{% for x in nope %}a{% else %}none{% endfor %}{% for x in l if x > 5 %}a{% else %}none{% endfor %}{% for x in l if x > 1 %}{{ loop.index }}{{ x }}{{ loop.last }}{% endfor %}
{% for x in n %}{% endfor %}
{% for x in z %}{% endfor %}
{% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }}{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for c in 'aé' %}{{ c }}.{% endfor %}
{% for a, b in [1] %}{% endfor %}
{% for x in l %}{% for y in l %}{{ loop.index }}{{ x }}{{ y }}{% endfor %}{{ loop.index }}{% endfor %}{{ loop is defined }}
{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in [1] %}{% break %}{% else %}else{% endfor %}{% for x in [1, 2] %}{% continue %}{% else %}else{% endfor %}{% for x in [1, 2] %}{% if x == 2 %}{% break %}{% endif %}{% else %}else{% endfor %}
{% for x in l %}{% with q = x %}{% if q == 1 %}{% break %}{% endif %}{{ q }}{% endwith %}{% endfor %}{% for x in l %}{% set s %}{% if x == 1 %}{% continue %}{% endif %}{% endset %}{{ x }}{% endfor %}{% for x in l %}{% filter upper %}{% if x == 1 %}{% break %}{% endif %}a{% endfilter %}{% endfor %}
{% for x in ['a', 'a', 'b'] %}{{ loop.changed(x) }}{% endfor %}{% for x in [[1, [2]], [3]] recursive %}{{ loop.depth }}{% if x is iterable %}{{ loop(x) }}{% else %}{{ x }}{% endif %}{% endfor %}
{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c=4) }}{{ m() }}{{ m(b=1, a=2) }}{{ m(1)|upper }}{{ m(1) is string }}{{ m.name }}
{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{% endmacro %}{{ m(x=2) }}
{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}{{ m(*[1, 2], **{'k': 3}) }}
{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}
{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}in{{ n }}{% endcall %}{% macro p() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b) p() %}{{ a }}{{ b }}{% endcall %}
{% macro m() %}{{ late }}{{ n }}{% endmacro %}{% set late = 1 %}{{ m() }}{% for n in [8] %}{{ m() }}{% endfor %}
{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}{{ m is defined }}
{% filter upper %}a{{ t }}{% endfilter %}{% filter trim | replace('a', 'b') %} a {% endfilter %}{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}{% with %}{% set a = 5 %}{{ a }}{% endwith %}{{ a is defined }}
{% generation %}a{{ n }}{% set g = 1 %}{% endgeneration %}{{ g is defined }}
{% raw %}{{ x }}{% if %}{% endraw %}{# a {{ b }} #}{{ '{{' }}{%- raw -%}  a  {%- endraw -%}  b
{% print n, t %}{% if n: %}colon{% endif %}
{% set j = joiner('|') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}
{{ strftime_now('%Y-%m-%d %H:%M:%S %A %a %B %b %d %j %y %p %I %%') }}{{ strftime_now('') }}
{{ raise_exception('no') }}
{{ raise_exception() }}
{{ nope|nope }}
{{ n is nope }}
{% if false %}{{ n|nope }}{{ n is nope }}{% endif %}ok
{% if true %}{{ n|nope }}{% endif %}
{% nope %}
{% if %}{% endif %}
{% for x in %}{% endfor %}
{% endif %}
{% if x %}
{{ }}
{{ 1 2 }}
{{ (1 }}
{{ 'a }}
{{ a.b. }}
{% set 1 = 2 %}
{% set true = 2 %}
{{ f(a=1, 2) }}
{{ f(a=1, a=2) }}
{{ {1} }}
{{ [1 }}
{{ 1 if }}
{{ n is divisibleby 2 is odd }}
{{ 'a\qb\\\x41\u00e9\101\'' }}{{ "\"" }}{{ '\
x' }}
{{ t.nothing is defined }}{{ d.items is defined }}{{ d['items'] is string }}{{ {}['items'] is defined }}{{ {}.q is defined }}
{{ loop }}{{ caller is defined }}
{{ namespace(a=1).a }}{{ namespace({'a': 2}).a }}{{ [namespace] is defined }}
{{ n | string | length }}{{ -n | abs }}{{ -1 | abs }}{{ 1 + 2 | string | length }}{{ not n | string == '7' }}{{ 1 ~ 2 * 3 ~ 4 + 1 | int }}
{{ (n, t)[1][0:2] }}{{ {'a': {'b': [1, 2]}}.a.b[-1] }}{{ [l, l][1][2] }}{{ m[0]['role'][0] }}{{ m[-1].role|lower }}{{ (l|sort)[0] }}{{ t.split(', ')[1].lower()[0:2] }}
""".strip("\n")
LAYOUTS = [
    "a\n{% if true %}\nb\n{% endif %}\nc\n", "  {% if true %}  \n  b\n  {% endif %}  \n", "a {%- if true -%} b {%- endif -%} c",
    "a\n  {%+ if true %}\nb\n  {%+ endif +%}\nc", "{{ 1 }}\n{{ 2 }}\n\n", "{{- 1 -}}\n {{- 2 }}\n", "a\n\n{%- set x = 1 %}\n\n b", "\n", "", "a\n", "a\n\n", "\n\na",
    "{# c #}\na", "  {# c #}\n  a", "  {#- c -#}  \n  a", "a {# c\nd #}\nb", "x{% set a = 1 %}\n  y", "  {% set a = 1 %} {% set b = 2 %}\n z", "\t{% if 1 %}\n\ty\n\t{% endif %}\n",
    "a\r\n{% if true %}\r\nb\r{% endif %}\nc\r\n", "{% for i in [1,2] %}\n  {{ i }}\n{% endfor %}\nend", "{% for i in [1,2] -%}\n  {{ i }}\n{%- endfor %}\nend", "  {{ 1 }}  {% if 1 %}a{% endif %}  ",
    "{%- if true %}\n    {{- 'a' }}\n{%- endif %}\n", "{% raw %}\n a\n{% endraw %}\n b", "  {% raw -%}\n a {% endraw +%}\n b", "{%- macro m() %}\n a\n{% endmacro -%}\n  {{ m() }}\n", "{{ 'a' }}{% if 1 %}\n\n{% endif %}b",
    "\u00a0{% if 1 %}a{% endif %}\u2003{%- if 1 %}b{% endif -%}\u3000c", "{{'a'}}\n{%if 1%}b{%endif%}", "{%if(1)%}b{%endif%}", "{{-1}}", "{{+1}}", "{{ {'a':{}} }}", "{{ {'a':{'b':1}}}}", "{% set x = {'a':{'b':1}}%}{{ x }}", "{% if 1 %}}}{% endif %}",
    "a{% set s %}\n b\n{% endset %}\n[{{ s }}]", "{% call m() %}{% endcall %}", "{ % } {", "{", "a{", "{{ '%}' }}{% set a = '}}' %}{{ a }}", "{#- a -#}\n\n{#- b -#}\n x", "{% generation %}\n a\n{% endgeneration %}\n b",
]


def snippet_cases():
    cases = [case(text, text, VALUES) for text in SNIPPETS.split("\n") if not text.startswith("x' }}")]
    joined = [c for c in cases if not c["template"].endswith("{{ '\\")]
    joined.append(case("{{ 'a\\\nb' }}", "{{ 'a\\\nb' }}", {}))
    return joined + [case(text, text, VALUES) for text in LAYOUTS]


# ---- random templates ------------------------------------------------------------------------------------------------

class Random:
    """Templates that mean something often enough: names that exist, filters that fit, now and then ones that do not."""
    NAMES = ["n", "f", "t", "e", "l", "d", "m", "z", "y", "w", "x", "i", "nope"]
    ATTRIBUTES = ["role", "content", "k", "a", "b", "items", "x", "keys", "0"]
    FILTERS0 = ["trim", "length", "tojson", "string", "list", "first", "last", "upper", "lower", "title", "capitalize", "sort", "unique", "reverse", "int", "float", "abs", "sum", "min", "max", "items", "dictsort", "default", "e", "safe", "indent", "join", "select", "reject", "round", "count", "wordcount"]
    TESTS0 = ["defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float", "boolean", "true", "false", "odd", "even", "callable", "lower", "upper"]
    METHODS0 = ["strip", "lstrip", "rstrip", "split", "upper", "lower", "title", "capitalize", "items", "keys", "values", "splitlines", "isdigit", "islower", "isupper", "isspace", "swapcase", "copy"]
    TEXTS = ["", "a", "b", "ab", " a b ", "a,b,,c", "é", "x\ny", "</think>", "Hello World", "1", "2.5", "-3", "日本", "<b>&\"'", "role", "user"]
    WS = ["", "", "", "-", "+"]

    def __init__(self, rng): self.r = rng

    def text(self): return repr_jinja(self.r.choice(self.TEXTS))

    def expr(self, depth):
        r = self.r
        if depth <= 0 or r.random() < 0.15:
            k = r.random()
            if k < 0.5: return r.choice(self.NAMES)
            if k < 0.7: return self.text()
            if k < 0.85: return str(r.choice([0, 1, 2, -1, 3, 7, 10, 1.5, -0.5, 1e3]))
            return r.choice(["true", "false", "none", "[]", "{}", "()", "'a'"])
        e = lambda: self.expr(depth - 1)
        k = r.randrange(27)
        if k == 0: return f"{e()} {r.choice(['+', '-', '*', '/', '//', '%', '~', '~', '+'])} {e()}"
        if k == 1: return f"{e()} {r.choice(['==', '!=', '<', '<=', '>', '>=', 'in', 'not in'])} {e()}"
        if k == 2: return f"{e()} {r.choice(['and', 'or'])} {e()}"
        if k == 3: return f"not {e()}"
        if k == 4: return f"({e()} if {e()} else {e()})"
        if k == 5: return f"({e()} if {e()})"
        if k in (6, 7): return f"({e()})|{r.choice(self.FILTERS0)}"
        if k == 8: return f"({e()})|{self.filter(depth)}"
        if k == 9: return f"({e()}) is {r.choice(['', 'not '])}{r.choice(self.TESTS0)}"
        if k == 10: return f"({e()}) is {r.choice(['equalto', 'in', 'gt', 'lt', 'divisibleby', 'eq', 'ne', 'sameas'])}({e()})"
        if k in (11, 12): return f"{self.primary(depth)}.{r.choice(self.ATTRIBUTES)}"
        if k == 13: return f"{self.primary(depth)}[{e()}]"
        if k in (14, 15): return f"{r.choice(self.NAMES)}[{self.bound()}:{self.bound()}{r.choice(['', ':', ':' + self.bound()])}]"
        if k in (16, 17): return f"({e()}).{r.choice(self.METHODS0)}()"
        if k == 18: return f"({e()}).{self.method(depth)}"
        if k == 19: return "[" + ", ".join(e() for _ in range(r.randrange(4))) + "]"
        if k == 20: return "{" + ", ".join(f"{self.text()}: {e()}" for _ in range(r.randrange(3))) + "}"
        if k == 21: return f"({e()}, {e()})"
        if k == 22: return f"-{self.primary(depth)}"
        if k == 23: return f"range({r.randrange(5)}, {e()})" if r.random() < .3 else f"range({r.randrange(6)})"
        if k == 24: return f"(m|{r.choice(['selectattr', 'rejectattr'])}({self.text() if r.random() < .2 else repr(r.choice(self.ATTRIBUTES))}{r.choice(['', ', %s' % repr(r.choice(self.TESTS0)), ', %s, %s' % (repr(r.choice(['equalto', 'in', 'ne', 'gt'])), e())])}))|{r.choice(['list', 'first', 'list', 'length', 'list|length'])}"
        if k == 25: return f"loop.{r.choice(['index', 'index0', 'first', 'last', 'length', 'revindex', 'revindex0', 'previtem', 'nextitem', 'depth'])}"
        return f"mac({', '.join(e() for _ in range(r.randrange(3)))})"

    def primary(self, depth):
        return self.r.choice(self.NAMES) if self.r.random() < 0.6 else f"({self.expr(depth - 1)})"

    def bound(self): return self.r.choice(["", "", "1", "2", "-1", "-2", "0", "5", "-9", "n"])

    def filter(self, depth):
        e = lambda: self.expr(depth - 1)
        return self.r.choice([
            lambda: f"join({e()})", lambda: f"default({e()})", lambda: f"default({e()}, true)", lambda: f"replace({e()}, {e()})", lambda: f"map({self.r.choice(self.FILTERS0)!r})|list",
            lambda: f"map(attribute={self.r.choice(self.ATTRIBUTES)!r})|list", lambda: f"map(attribute='k', default={e()})|join(',')", lambda: f"tojson(indent={self.r.randrange(4)})",
            lambda: "tojson(separators=(',', ':'), sort_keys=true)", lambda: f"trim({self.text()})", lambda: f"indent({self.r.randrange(4)}, {self.r.choice(['true', 'false'])})", lambda: f"select({self.r.choice(self.TESTS0)!r})|list",
            lambda: f"reject('equalto', {e()})|list", lambda: f"sort(reverse=true)", lambda: f"sort(attribute='k')", lambda: f"round({self.r.randrange(3)})", lambda: f"int({e()})", lambda: f"batch(2)|list",
            lambda: f"attr({self.r.choice(self.ATTRIBUTES)!r})", lambda: f"sum(attribute='k')", lambda: f"max(attribute='k')", lambda: f"format({e()})", lambda: f"string|{self.r.choice(self.FILTERS0)}", lambda: f"list|{self.r.choice(self.FILTERS0)}"])()

    def method(self, depth):
        e = lambda: self.expr(depth - 1)
        return self.r.choice([
            lambda: f"strip({self.text()})", lambda: f"lstrip({self.text()})", lambda: f"rstrip({self.text()})", lambda: f"split({self.text()})", lambda: f"split({self.text()}, {self.r.randrange(-1, 3)})", lambda: f"rsplit(none, 1)", lambda: f"startswith({self.text()})",
            lambda: f"endswith({e()})", lambda: f"replace({self.text()}, {self.text()})", lambda: f"get({e()})", lambda: f"get({self.text()}, {e()})", lambda: f"find({self.text()})", lambda: f"count({e()})", lambda: f"join({e()})", lambda: f"index({e()})",
            lambda: f"zfill({self.r.randrange(6)})", lambda: f"center({self.r.randrange(9)}, '*')", lambda: f"partition({self.text()})", lambda: f"rpartition({self.text()})", lambda: f"format({e()}, {e()})", lambda: f"removeprefix({self.text()})"])()

    def tag(self, inside): return "{%" + self.r.choice(self.WS) + " " + inside + " " + self.r.choice(self.WS) + "%}"

    def body(self, depth, loops):
        return "".join(self.statement(depth, loops) for _ in range(self.r.randrange(1, 4)))

    def statement(self, depth, loops):
        r = self.r
        k = r.randrange(20) if depth > 0 else r.randrange(8)
        gap = r.choice(["", "", " ", "\n", "\n  ", "x", "é\n"])
        if k < 5: return gap + "{{" + r.choice(["", "", "-"]) + " " + self.expr(3) + " " + r.choice(["", "", "-"]) + "}}" + r.choice(["", "\n", " "])
        if k < 8: return gap + r.choice(["text", "a\n", "  b", "\n\n", "{# c #}", "{#- c -#}\n", "\t"])
        if k < 10: return gap + self.tag(f"set {r.choice(['x', 'i', 'q', 't', 'ns.v', 'x, q'])} = {self.expr(3)}")
        if k == 10: return gap + self.tag("set x" + r.choice(["", " | upper", " | trim"])) + self.body(depth - 1, loops) + self.tag("endset")
        if k < 13:
            out = gap + self.tag(f"if {self.expr(3)}") + self.body(depth - 1, loops)
            for _ in range(r.choice([0, 0, 1])): out += self.tag(f"elif {self.expr(2)}") + self.body(depth - 1, loops)
            if r.random() < .5: out += self.tag("else") + self.body(depth - 1, loops)
            return out + self.tag("endif")
        if k < 16:
            over = r.choice(["l", "m", "t", "d", "d.items()", "range(3)", "m[1:]", "l[::-1]", "d|items", "d|dictsort", self.expr(2)])
            target = "x, i" if over in ("d.items()", "d|items", "d|dictsort") and r.random() < .9 else "x"
            out = gap + self.tag(f"for {target} in {over}" + r.choice(["", "", "", f" if {self.expr(2)}"])) + self.body(depth - 1, loops + 1)
            if r.random() < .25: out += self.tag("else") + self.body(depth - 1, loops)
            return out + self.tag("endfor")
        if k == 16 and loops: return gap + self.tag(f"if {self.expr(2)}") + self.tag(r.choice(["break", "continue"])) + self.tag("endif")
        if k == 17: return gap + self.tag("with q = " + self.expr(2)) + self.body(depth - 1, loops) + self.tag("endwith")
        if k == 18: return gap + self.tag("filter " + r.choice(["upper", "trim", "indent(2)", "replace('a', 'b')"])) + self.body(depth - 1, loops) + self.tag("endfilter")
        return gap + self.tag("call mac(1)") + self.body(depth - 1, 0) + self.tag("endcall")

    def template(self):
        head = "{% set ns = namespace(v=0) %}{% macro mac(a, b='B') %}<{{ a }}|{{ b }}{{ caller() if caller }}>{% endmacro %}"
        return head + self.body(3, 0)


def repr_jinja(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"


# Python's own words for a thing inside the interpreter, which no template wants to print.
UNCOMPARED = ["0x7f", "0X7F", "<built-in", "<function", "<bound method", "<Namespace", "<class", "<LoopContext", "<Macro", "generator", "iterator", "<reversed"]


def random_cases(count, seed):
    rng = random.Random(seed)
    cases, errors = [], 0
    while len(cases) < count:
        text = Random(rng).template()
        context = {k: VALUES[k] for k in VALUES if rng.random() < 0.95}
        made = case(text, text, context)
        if any(word in made.get("expected", "") for word in UNCOMPARED):
            continue
        if "error" in made and rng.random() < 0.5:
            continue  # most random templates fail somewhere; keep fewer of them
        errors += "error" in made
        cases.append(made)
    print(f"{len(cases)} cases, {errors} of them errors, seed {seed}", file=sys.stderr)
    return document({}, cases)


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "--random":
        json.dump(random_cases(int(sys.argv[2]), int(sys.argv[3])), sys.stdout, ensure_ascii=False)
        return
    if len(sys.argv) == 3 and sys.argv[1] == "--templates":
        templates = {p.stem: p.read_text() for p in sorted(pathlib.Path(sys.argv[2]).glob("*.jinja"))}
        cases = conversation_cases(templates)
        print(f"{len(templates)} templates, {len(cases)} cases, {sum('error' in c for c in cases)} of them errors", file=sys.stderr)
        json.dump(document(templates, cases), sys.stdout, ensure_ascii=False)
        return
    templates = {p.stem: p.read_text() for p in sorted((HERE / "chat_templates").glob("*.jinja"))}
    cases = conversation_cases(templates) + snippet_cases()
    out = HERE.parent / "gpu/text/chat_template_vectors.json"
    made = document(templates, cases)
    made["values"] = VALUES
    for c in cases:  # snippets name VALUES instead of repeating them
        if c.get("context") is VALUES:
            c["context"] = "values"
    lines = ",\n".join(json.dumps(c, ensure_ascii=False) for c in made.pop("cases"))
    out.write_text(json.dumps(made, ensure_ascii=False)[:-1] + ',\n"cases": [\n' + lines + "\n]}\n")
    print(f"{len(cases)} cases, {sum('error' in c for c in cases)} of them errors")


if __name__ == "__main__":
    main()
