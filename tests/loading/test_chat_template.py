"""Templates are programs from a file: they get what they need, no more, and their errors are the request's."""

import contextlib
from datetime import datetime
from typing import Any

import pytest

from callboard.pipeline.chat_template import ChatTemplate
from callboard.scheduler.errors import InvalidRequestError

HELLO = [{"role": "user", "content": "Hi"}]
CHATML = (
    "{%- for message in messages %}\n{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def render(text: str, messages: Any = HELLO, **options: Any) -> str:
    return ChatTemplate({"default": text}, {"bos_token": "<s>"}).render(messages, **options)


def refusal(text: str, messages: Any = HELLO, **options: Any) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        render(text, messages, **options)
    return str(caught.value)


def test_the_generation_prompt_is_added_unless_not_wanted() -> None:
    assert render(CHATML) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == "<|im_start|>user\nHi<|im_end|>\n"


def test_an_error_that_the_template_raises_is_the_requests_own() -> None:
    picky = (
        "{% if messages | length > 1 %}{{ raise_exception('Roles must alternate: ' + messages[1].role) }}{% endif %}"
    )
    assert refusal(picky, HELLO * 2) == "chat template 'default': Roles must alternate: user"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{ 1 / 0 }}", "chat template 'default': division by zero"),
        ("{{ messages[0].tools.name }}", "chat template 'default': 'dict object' has no attribute 'tools'"),
        ("{{ 'a' + messages[0] }}", "chat template 'default': can only concatenate str"),
        ("{% if %}", "chat template 'default', line 1: Expected an expression"),
        ("{% include 'other' %}", "chat template 'default': no loader for this environment specified"),
    ],
)
def test_an_error_in_the_template_is_named(text: str, reason: str) -> None:
    assert refusal(text).startswith(reason)


def test_the_date_is_given_by_the_clock() -> None:
    template = ChatTemplate({"default": "{{ strftime_now('%d %b %Y') }}"}, now=lambda: datetime(2024, 7, 26))
    assert template.render(HELLO) == "26 Jul 2024"


@pytest.mark.parametrize(
    "text",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(999999) %}{{ 'x' * 10000 }}{% endfor %}",
        "{{ 'x' * 10 ** 10 }}",
        "{{ 10000000000 * 'x' }}",
        "{{ 9 ** 9999999 }}",
        "{% for i in range(10 ** 12) %}{% endfor %}",
        "{% for a in 'a' * 9999999 %}{% for b in messages %}{% endfor %}{% endfor %}",
        "{% macro a(n) %}{% if n %}{{ a(n - 1) }}{{ a(n - 1) }}{% endif %}{% endmacro %}{{ a(60) }}",
        "{% set ns = namespace(x=['a']) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=7) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 10 ** 9) }}",
        "{{ 'a' | center(10 ** 9) }}",
        "{{ 'a'.ljust(10 ** 9) }}",
        "{{ '1'.zfill(1000000000) }}",
        "{{ ('a' * 100000).replace('a', 'a' * 100000) }}",
        "{{ ('a' * 1000000) | list | join('a' * 1000) }}",
        "{{ messages | tojson(indent=10 ** 8) }}",
    ],
)
def test_a_template_that_would_run_or_grow_without_end_is_stopped(text: str) -> None:
    template = ChatTemplate({"default": text}, time_limit=0.2)
    with pytest.raises(InvalidRequestError, match="chat template 'default': "):
        template.render(HELLO)


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__func__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ self.__init__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ lipsum() }}",
        "{{ open('/etc/passwd') }}",
    ],
)
def test_a_template_reaches_no_internals_files_or_state(text: str) -> None:
    with contextlib.suppress(InvalidRequestError):
        assert render(text) == ""
    assert HELLO == [{"role": "user", "content": "Hi"}]


def test_no_tools_and_an_empty_list_of_tools_are_the_same() -> None:
    text = "{% if tools is not none %}{{ tools | tojson }}{% else %}none{% endif %}"
    assert render(text) == render(text, tools=[]) == "none"
    assert render(text, tools=[{"name": "é<b>"}]) == '[{"name": "é<b>"}]'


def test_of_two_named_templates_the_one_for_tools_is_used_for_tools() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "tools"})
    assert template.render(HELLO) == "plain"
    assert template.render(HELLO, tools=[{"name": "f"}]) == "tools"


def test_a_template_that_fails_is_named() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "{{ raise_exception('no tools today') }}"})
    with pytest.raises(InvalidRequestError, match=r"^chat template 'tool_use': no tools today$"):
        template.render(HELLO, tools=[{"name": "f"}])


def test_no_default_is_guessed() -> None:
    with pytest.raises(InvalidRequestError, match="the model has no 'default' chat template, only: rag, short"):
        ChatTemplate({"short": "a", "rag": "b"}).render(HELLO)


def test_loop_controls_generation_blocks_and_more_variables_work() -> None:
    loop = (
        "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% elif i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    )
    assert render(loop) == "013"
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}") == "Hi"
    assert render("{{ bos_token }}{{ enable_thinking }}", enable_thinking=False) == "<s>False"


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "messages is empty, needed is a list of at least one message"),
        (iter(()), "messages is empty, needed is a list of at least one message"),
        ("Hi", "messages is str, needed is a list of at least one message"),
        (HELLO[0], "messages is dict, needed is a list of at least one message"),
        (5, "messages is int, needed is a list of at least one message"),
        (["Hi"], "messages[0] is str, expected a dict"),
        ([{"content": "Hi"}], "messages[0] has role None, expected a name"),
        ([*HELLO, {"role": "user"}], "messages[1] has no content"),
        ([{"role": "user", "content": 3}], "messages[0] has content of type int, expected text or a list"),
    ],
)
def test_messages_of_another_form_are_refused(messages: Any, reason: str) -> None:
    assert refusal(CHATML, messages) == reason


def test_a_message_with_tool_calls_needs_no_content() -> None:
    calls = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}]
    assert render("{{ messages[1].tool_calls[0].name }}", calls) == "f"


def test_messages_and_tools_may_come_from_any_iterable() -> None:
    text = "{{ messages | length }} {{ tools | length }} {{ messages | length }}"
    assert render(text, (m for m in HELLO * 2), tools=(t for t in [{"name": "f"}])) == "2 1 2"


@pytest.mark.parametrize(("tools", "kind"), [(5, "int"), ("search", "str"), ({"name": "f"}, "dict")])
def test_tools_of_another_form_are_refused(tools: Any, kind: str) -> None:
    assert refusal(CHATML, tools=tools) == f"tools is {kind}, needed is a list of tools"


def test_a_content_of_parts_is_named_where_the_template_takes_text() -> None:
    parts = [*HELLO, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    told = "chat template 'default': messages[1].content is a list; this model's template takes text"
    assert refusal(CHATML, parts) == told
    assert render("{{ messages[1].content[0].text }}", parts) == "Hi"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ '%s-%d' % ('a', 3) }} {{ '{}'.format('x') }} {{ 7 % 3 }} {{ 'a' ~ 1 ~ none }}", "a-3 x 1 a1None"),
        ("{% for x in [1, 2, 3] %}{{ loop.index }}{{ loop.last }} {% endfor %}", "1False 2False 3True "),
        (
            "{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}"
            "{% for x in none_such %}{% else %}-{% endfor %}",
            "a1-",
        ),
        ("{{ messages | map(attribute='role') | join(', ') }} {{ [3, 1] | sort | list }}", "user [1, 3]"),
        (
            "{% set x %}{{ messages[0].content }}!{% endset %}{{ x | upper | trim }}{{ 'a\\nb' | indent(2) }}",
            "HI!a\n  b",
        ),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages[::-1] %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "1",
        ),
    ],
)
def test_what_templates_use_works_in_the_box(text: str, expected: str | int) -> None:
    assert render(text) == str(expected)
