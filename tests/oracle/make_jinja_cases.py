#!/usr/bin/env python3
"""Writes tests/golden/text/jinja_cases.json: small templates of our own, one for each thing the
interpreter can do, with what jinja2 makes of them.

    pip install jinja2
    python tests/oracle/make_jinja_cases.py
"""
import json
from pathlib import Path

import template_cases

VARIABLES = {
    "s": "Hello <World> & \"you\"", "u": "Zürich 你好 🏴‍☠️", "empty": "", "n": 7, "neg": -7, "x": 2.5, "big": 1e22, "small": 1e-7,
    "whole": 3.0, "yes": True, "no": False, "nil": None, "l": [3, 1, 2], "words": ["b", "A", "c"], "e": [], "spaces": "  a b\t\n",
    "d": {"b": 1, "a": [1, {"k": None}], "items": "shadow", "Z": True}, "lines": "one\n\ntwo\n", "quote": "it's", "both": "it's \"q\"",
    "users": [{"name": "Ann", "age": 30, "a": {"b": 1}}, {"name": "bob", "age": 25, "a": {"b": 2}}, {"name": "Cy"}],
    "deep": {"x": {"y": {"z": ["w"]}}}, "nested": [[1, 2], [3]], "dup": ["a", "B", "b", "a", 1, 1],
}
EXPRESSIONS = r"""
s | u | empty | n | neg | x | big | small | whole | yes | nil | l | d | missing | words | deep | nested | both
[s, u, 'it\'s', "q\"", both] ; {'k': 'v', 1: none, true: 2.0} ; (1,) ; () ; (1, 'a') ; [] ; {} ; d.values() | list ; d.items() ; d.keys()
n + 1 ; n - 10 ; n * x ; n / 2 ; n // 2 ; neg // 2 ; neg % 3 ; n % -3 ; 2 ** 10 ; 2 ** -1 ; 7 / 7 ; 1e3 ; 1_000 ; 0x1f ; -n ; +n ; - -n ; 10 % 3.5
1 + 2 * 3 - 4 // 2 ; (1 + 2) * 3 ; 'a' ~ 1 ~ none ~ true ~ x ; 'a' + 'b' ~ 'c' ; 'ab' * 3 ; [0] * 3 ; [1] + [2] ; (1,) + (2,) ; 'a' 'b'
1 == 1.0 ; true == 1 ; 'a' == 'a' ; none == false ; [1] == [1] ; {'a': 1} == {'a': 1.0} ; missing == other ; 1 != 2 ; 'a' < 'b' ; [1, 2] < [1, 3] ; 1 < 2 < 3 ; 1 < 3 < 2
'a' in 'cat' ; 'x' not in 'cat' ; 1 in l ; 'b' in d ; 5 in d ; 'q' in missing ; not 1 in l ; not yes and no ; yes or missing.x ; no and missing.x ; nil or 'x' ; empty or 0 or [] or 'last'
'a' if yes else 'b' ; 'a' if no else 'b' ; 'a' if no ; ('a' if no else 'b') ~ 'c' ; 1 if no else 2 if no else 3
l[0] ; l[-1] ; l[9] ; l[1:] ; l[:-1] ; l[::-1] ; l[::2] ; l[5:] ; u[0:3] ; u[::-1] ; u[-2:] ; u[1] ; s[99] ; d['b'] ; d.b ; d.items ; d['items'] ; d.nope ; deep.x.y.z[0] ; deep['x'].y['z'] ; l.0 ; nested[0][1] ; words[-1:] ; l[1:100:1] ; l[-100:2] ; l[2:0:-1]
s.upper() ; s.lower() ; s.title() ; 'élan vital'.capitalize() ; spaces.strip() ; spaces.lstrip() ; spaces.rstrip() ; 'xxaxx'.strip('x') ; 'abcba'.strip('ab') ; 'xxa'.lstrip('x') ; 'axx'.rstrip('x')
'a,b,,c'.split(',') ; 'a b  c '.split() ; 'a b c d'.split(' ', 2) ; 'a b c d'.split(none, 1) ; 'a,b,c'.rsplit(',', 1) ; lines.splitlines() ; lines.splitlines(true) ; 'a.b.c'.partition('.') ; 'a.b.c'.rpartition('.') ; 'abc'.partition('x') ; ' a  b '.split(maxsplit=1)
s.startswith('He') ; s.startswith(('x', 'He')) ; s.endswith('you') ; 'aXbX'.replace('X', 'yy') ; 'aXbX'.replace('X', '', 1) ; 'abc'.replace('', '-') ; s.find('W') ; u.find('你') ; s.find('zz') ; 'aba'.rfind('a') ; 'abc'.index('c') ; 'banana'.count('an')
'-'.join(['a', 'b']) ; '-'.join('abc') ; 'abc'.isalpha() ; '123'.isdigit() ; 'a1'.isalnum() ; ' '.isspace() ; 'ABC'.isupper() ; 'abc'.islower() ; ''.isdigit() ; '5'.zfill(3) ; '-5'.zfill(4) ; 'a'.ljust(3, '.') ; 'a'.rjust(3) ; 'a'.center(4, '*') ; 'ab'.center(5, '*') ; 'prefix'.removeprefix('pre') ; 'prefix'.removesuffix('fix')
'{} {}'.format(1, 'a') ; '{0}{1}{0}'.format('a', 'b') ; '{x:>5}|{y:<4}|{z:^6}|'.format(x='a', y=1, z='b') ; '{:05d} {:+d} {:x} {:.2f} {:8.3f} {:%}'.format(42, 7, 255, 3.14159, 2.5, 0.25) ; '{{}} {!r}'.format('a') ; '%s is %d and %.2f%%' % ('a', 3, 1.5) ; '%s' % 'x' ; '%05d' % 42
d.get('b') ; d.get('zz') ; d.get('zz', 'def') ; d.items() | list ; d.keys() | list ; l.index(1) ; l.count(3) ; d.copy() ; dict(a=1, b=2) ; dict({'a': 1}, b=3) ; range(3) | list ; range(2, 8, 3) | list ; range(3, 0, -1) | list
s | upper ; s | lower ; s | title ; u | capitalize ; spaces | trim ; 'xax' | trim('x') ; n | string ~ 'a' ; s | length ; u | length ; d | length ; l | count ; missing | length ; s | e ; s | escape ; s | safe ; (s | safe) + '<' ; '<' + (s | safe) ; s | replace('l', 'L') ; s | replace('l', 'L', 1)
missing | default('x') ; nil | default('x') ; nil | default('x', true) ; empty | d('y', boolean=true) ; no | default(1, true) ; deep.q.r | default('z') ; d.q | default('z')
l | first ; l | last ; e | first ; l | sort ; l | sort(reverse=true) ; words | sort ; words | sort(case_sensitive=true) ; users | sort(attribute='name') | map(attribute='name') | list ; words | join ; words | join(', ') ; l | join('-') ; users | join(',', attribute='name') ; missing | join ; l | min ; l | max ; words | max ; l | sum ; users[:2] | sum(attribute='age') ; l | reverse | list ; 'abc' | reverse ; 'abc' | list ; d | list
users | map(attribute='age', default=0) | list ; words | map('upper') | list ; words | map('replace', 'b', 'X') | join ; users | map(attribute='a.b') | list ; users | selectattr('age') | map(attribute='name') | list ; users | selectattr('age', 'defined') | list | length ; users | selectattr('name', 'equalto', 'bob') | list ; users | rejectattr('name', '==', 'bob') | map(attribute='name') | join ; l | select('odd') | list ; l | reject('gt', 1) | list ; ['', 'a', none] | select | list ; dup | unique | list ; l | select('in', [1, 2]) | list ; nil | selectattr('a') | list ; users | selectattr('age', '>', 26) | map(attribute='name') | first
d | items | list ; missing | items | list ; d | dictsort ; d | dictsort(reverse=true) ; {'a': 2, 'b': 1} | dictsort(by='value') ; {'B': 1, 'a': 2} | dictsort(true) ; d | tojson ; u | tojson ; u | tojson(ensure_ascii=true) ; s | tojson ; d | tojson(indent=2) ; l | tojson(indent=4) ; [] | tojson(indent=2) ; {} | tojson(indent=2) ; d | tojson(sort_keys=true) ; d | tojson(separators=(',', ':')) ; nil | tojson ; yes | tojson ; x | tojson ; big | tojson ; {1: 2, none: 3, true: 4} | tojson ; (1, 2) | tojson ; '\u2028\x01\x7f' | tojson ; missing | tojson ; d.items() | tojson
lines | indent ; lines | indent(2) ; lines | indent(2, true) ; lines | indent(2, blank=true) ; 'a\nb' | indent('> ', first=true) ; '42' | int ; '4.9' | int ; 'x' | int ; 'x' | int(5) ; 4.9 | int ; none | int ; 'ff' | int(0, 16) ; ' 12 ' | int ; '1.5' | float ; 'x' | float ; 3 | float ; -3 | abs ; 2.5 | round ; 2.567 | round(2) ; 2.1 | round(0, 'ceil') ; 3 | round ; 'a b c' | wordcount ; '%s-%s' | format('a', 'b')
missing is defined ; s is defined ; missing is undefined ; missing is not defined ; nil is none ; s is string ; n is number ; yes is number ; yes is boolean ; n is integer ; yes is integer ; x is float ; d is mapping ; l is mapping ; l is sequence ; s is sequence ; d is sequence ; n is sequence ; s is iterable ; n is iterable ; missing is iterable ; yes is true ; 1 is true ; no is false ; n is odd ; n is even ; 9 is divisibleby 3 ; 9 is divisibleby(2) ; n is eq 7 ; n is gt(3) ; 'a' is in 'abc' ; 'a' is lower ; 'A' is upper ; range is callable ; s is not string ; d.get is defined ; n is sameas n ; 'upper' is filter ; 'odd' is test ; d.items() is iterable ; (l | map('string')) is sequence
"a\tb\\n\x41\u00e9\U0001F600\101\q" ; 'é' ; -1 | abs ; -n.real | default('r') ; not no ; 'a' ~ ('b' if yes) ; [1, 2,] ; {'a': 1,} ; s[0] | upper ~ 'x' ; (l | first) + 1 ; d['a'][1]['k'] ; loop is defined ; namespace(a=1).a ; strftime_now('%Y-%m-%d %H:%M:%S %A %d %b %B') ; raise_exception('no ' ~ n) ; 1 / 0 ; missing.attr ; missing() ; nil.x ; nil.x.y ; s() ; l.append(1) ; d.update({}) ; d.pop('a') ; 1 + 'a' ; 'a' + 1 ; l + 'a' ; nil + 1 ; missing + 1 ; -s ; 'a' < 1 ; n in n ; l | nosuchfilter ; l is nosuchtest ; nil | length ; s | first ; n | list ; namespace(__class__=1) ; 'a'.join([1]) ; s.nosuch() ; ''.split('') ; range(200000) ; 'a' | int + 'b' ; e | last ; {[1]: 2} ; l[none] ; l['x'] ; l | join(1) ; s.__class__ ; s._x is defined ; d | attr('get') is defined
"""
TEMPLATES = [
    "{% for i in l %}{{ i }}{% if not loop.last %}, {% endif %}{% else %}none{% endfor %}",
    "{% for i in e %}{{ i }}{% else %}none{% endfor %}|{% for i in missing %}x{% endfor %}",
    "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    "{% for i in l %}{{ loop.previtem | default('-') }}{{ i }}{{ loop.nextitem is defined }}{{ loop.cycle('a', 'b') }}{{ loop.changed(i > 1) }} {% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}|{% for k in d %}{{ k }}{% endfor %}|{% for k, v in d | dictsort %}{{ k }}{% endfor %}",
    "{% for u in users if u.age is defined and u.age > 26 %}{{ loop.index }}{{ u.name }}/{{ loop.length }}{% else %}no{% endfor %}",
    "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for a, b in [(1, 2), [3, 4], 'xy'] %}{{ a }}{{ b }} {% endfor %}{% for (a, b) in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}",
    "{% for i in l %}{% for j in l %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}",
    "{% set x = 1 %}{% for i in l %}{{ x }}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}",
    "{% set ns = namespace(t=0, seen=[]) %}{% for i in l %}{% set ns.t = ns.t + i %}{% set ns.seen = ns.seen + [i] %}{% endfor %}{{ ns.t }}{{ ns.seen }}{{ ns.nope is defined }}",
    "{% set ns = {'a': 1} %}{% set ns.a = 2 %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t = 1, 2 %}{{ t }}{% if yes %}{% set c = 3 %}{% endif %}{{ c }}",
    "{% if no %}{% set c = 3 %}{% endif %}{{ c is defined }}{% if n > 5 %}a{% elif n > 3 %}b{% else %}c{% endif %}{% if missing %}x{% elif nil %}y{% else %}z{% endif %}",
    "{% set b %}  in {{ n }} {% for i in l %}{{ i }}{% endfor %}{% endset %}[{{ b }}]{% set c | upper | trim %} abc {% endset %}[{{ c }}]",
    "{% filter upper %}a{{ s }}{% endfilter %}|{% filter replace('a', 'b') | upper %}xax{% endfilter %}",
    "{% macro m(a, b=2, c=a) %}<{{ a }},{{ b }},{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, c=5) }}{{ m(b=3, a=0) }}{{ m() }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, z=2) }}",
    "{% macro f(k) %}{{ k }}{% if k > 0 %}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(4) }}{{ f.name is defined }}",
    "{% macro outer() %}[{{ caller() }}{{ caller() }}]{% endmacro %}{% call outer() %}x{{ n }}{% endcall %}",
    "{% macro each(items) %}{% for i in items %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(v) each(l) %}({{ v }}){% endcall %}",
    "{% macro late() %}{{ z }}{% endmacro %}{% set z = 5 %}{{ late() }}{% macro reads() %}{% set z = 9 %}{{ z }}{% endmacro %}{{ reads() }}{{ z }}",
    "{% set r = namespace(out='') %}{% macro add(x) %}{% set r.out = r.out ~ x %}{% endmacro %}{{ add(1) }}{{ add(2) }}{{ r.out }}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% set q = 2 %}{% endwith %}{{ a is defined }}{{ q is defined }}",
    "{% generation %}{% set g = 1 %}a{{ g }}{% endgeneration %}{{ g is defined }}",
    "{% raw %}{{ not }} {% rendered %}{% endraw %}x{%- raw -%}  {# y #} {%- endraw %} z",
    "a {# comment {{ x }} #} b {#- c -#} d {#\n#}\n e",
    "  {% if yes %}\n    x\n  {% endif %}\n  y\n",
    "a\n  {%- if yes %}\n  x\n  {%- endif -%}\n  y\n\n",
    "a\n  {%+ if yes %}\n  x {%+ endif +%}\n  y",
    "{{ 'a' }}\n{{- 'b' -}}\n  c {{ 'd' }}\n\n",
    "x {%- for i in l -%} {{ i }} {%- endfor -%} y",
    "{% for i in l %}\n  {{ i }}\n{% endfor %}\nend",
    "  {# c #}\n  t\n\t{% set q = 1 %}\n{{ q }}",
    "a\r\nb\rc{{ '\r\n' | length }}\r\n",
    "{{ '{{' }}{{ '%}' }}{{ '}}' }}{% if '%}' == '%}' %}y{% endif %}{{ {'a': {'b': 1}}['a']['b'] }}",
    "{{ n -}}   x   {{- n }}{%- set z = 1 -%}   y",
    "{%- if yes -%}\n\u3000 a \u3000\n{%- endif -%}",
    "{% set l2 = l | map('string') %}{{ l2 | join }}{{ l2 | join }}|{% set g = l | select %}{{ g | first }}{{ g | list }}",
    "{% for c in u %}[{{ c }}]{% endfor %}{% for c in 'ab' | list %}{{ c }}{% endfor %}",
    "{{ s }}{{ nil }}{{ yes }}{{ missing }}{{ l }}",
    "{% if s is string and l is not string and d is mapping %}ok{% endif %}{% if not missing is defined %}ok{% endif %}",
    "{{ users | map(attribute='name') | map('lower') | sort | join(', ') }}{{ (users | selectattr('age', 'ge', 25) | list)[0].name }}",
    "{% set m = {'user': 'U', 'assistant': 'A'} %}{% for r in ['user', 'assistant', 'tool'] %}{{ m[r] | default(r) }}{{ m.get(r, '?') }}{% endfor %}",
    "{{ [1, 2] | tojson }}{{ '<&>' | tojson | safe }}{{ {'a': '\"\\\\\n\t'} | tojson }}",
    "{% set content = 'a</think>b</think>c' %}{{ content.split('</think>')[-1].lstrip('\\n') }}{{ content.split('</think>')[0] }}",
    "{%- macro json(v) -%}{%- if v is mapping -%}{ {%- for k, x in v | dictsort -%}{{ k }}:{{ json(x) }}{%- if not loop.last %},{% endif -%}{%- endfor -%} }{%- elif v is iterable and v is not string -%}[{%- for x in v -%}{{ json(x) }}{{ ',' if not loop.last }}{%- endfor -%}]{%- else -%}{{ v }}{%- endif -%}{%- endmacro -%}{{ json(d) }}",
    "{{ loop }}", "{% endif %}", "{% if %}", "{{ }}", "{{ 1 + }}", "{{ (1 }}", "{{ 'a }}", "{% for x in %}{% endfor %}", "{% if yes %}",
    "{% nosuch %}", "{% break %}", "{{ a b }}", "{{ [1, 2 }}", "{% set %}", "{# open", "{% raw %} x", "{{ 1 | }}", "{{ x is }}",
    "{% macro f( %}{% endmacro %}", "{% block a %}x{% endblock %}", "{% include 'a' %}", "{% for i in l recursive %}{% endfor %}",
]
# What jinja2 renders and this interpreter refuses; the reason stands beside it in docs/text.md.
REFUSED = {"{% block a %}x{% endblock %}", "{% for i in l recursive %}{% endfor %}", "{{ d.items }}",
           "{{ -n.real | default('r') }}",
           "{% macro f(k) %}{{ k }}{% if k > 0 %}{{ f(k - 1) }}{% endif %}{% endmacro %}{{ f(4) }}{{ f.name is defined }}"}


def main():
    env = template_cases.environment()
    sources = ["{{ " + e.strip() + " }}" for line in EXPRESSIONS.strip().split("\n")
               for e in (line.split(" ; ") if " ; " in line else line.split(" | "))]
    cases = [{"template": source, **template_cases.render(env, source, VARIABLES),
              **({"refused": True} if source in REFUSED else {})} for source in sources + TEMPLATES]
    assert sum("refused" in case for case in cases) == len(REFUSED)
    out = Path(__file__).parents[1] / "golden" / "text" / "jinja_cases.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    body = ",\n".join("  " + json.dumps(case, ensure_ascii=False) for case in cases)
    out.write_text('{"variables": ' + json.dumps(VARIABLES, ensure_ascii=False) + ',\n "cases": [\n' + body + "\n]}\n",
                   encoding="utf-8")
    print(f"{len(cases)} cases, {sum('output' in c for c in cases)} rendered")


if __name__ == "__main__":
    main()
