"""A chat template is a stranger's program: it reaches nothing of Python, and it is cut off in time and memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

import workbench
from workbench.errors import PromptError
from workbench.models import Tokenizer, templates

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None, "extra": 1}]
SIMPLE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}{{ '!' if add_generation_prompt }}"


class Words:
    """As much of a Hugging Face tokenizer as rendering needs."""

    eos_token_id = None
    special_tokens_map: dict[str, Any] = {"bos_token": "<s>"}  # noqa: RUF012

    def __init__(self, template: Any) -> None:
        self.chat_template = template


def render(template: Any, messages: Any = MESSAGES) -> str:
    return Tokenizer(Words(template)).render_chat(messages)


# What holds for every template ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "messages",
    [
        MESSAGES[:1],
        [{"role": "system", "content": "<b>é漢🦊\u202e\x00"}, {"role": "user", "content": "x" * 10_000}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        [{"role": "user", "content": "a", "reasoning_content": "b"}, {"role": "assistant", "content": "\u2028"}],
    ],
)
@pytest.mark.parametrize("template", [SIMPLE, "{{ bos_token }}{{ messages|tojson }}", None])
def test_a_sound_template_writes_the_same_there_as_here(messages: Any, template: str | None) -> None:
    here = workbench.load("tiny-llama", progress=False).tokenizer
    hf = here.hf
    kept = hf.chat_template
    try:
        hf.chat_template = template or kept
        there = Tokenizer(hf)
        assert here.trusted
        assert not there.trusted
        for reply in (True, False):
            assert said_by(there, messages, reply) == said_by(here, messages, reply)
    finally:
        hf.chat_template = kept


def said_by(tokenizer: Tokenizer, messages: Any, reply: bool) -> str:
    try:
        return tokenizer.render_chat(messages, reply=reply)
    except PromptError as refusal:
        return str(refusal).replace("TypeError: ", "")


def test_what_a_message_holds_beside_data_is_named_and_not_sent() -> None:
    assert render("{{ messages[0].content }}", [{"role": "user", "content": object()}]) == "<object>"


def test_of_several_templates_the_default_is_taken() -> None:
    assert render({"default": "a", "tool_use": "b"}) == "a"
    for template in ({"tool_use": "b"}, 7, ["a"]):
        with pytest.raises(PromptError, match=r"chat template is no text"):
            render(template)


# Reaching for Python ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ().__class__.__base__.__subclasses__() }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{{ ''|attr('__class__')|attr('__mro__') }}",
        "{{ ''|attr('\\x5f\\x5fclass\\x5f\\x5f') }}",
        "{{ self.__init__.__globals__ }}",
        "{{ self._TemplateReference__context.environment }}",
        "{{ cycler.__init__.__globals__.os.popen('touch CANARY').read() }}",
        "{{ joiner.__init__.__globals__['os'].system('touch CANARY') }}",
        "{{ namespace.__init__.__globals__.os.system('touch CANARY') }}",
        "{{ lipsum.__globals__.os.system('touch CANARY') }}",
        "{{ lipsum.__globals__['__builtins__']['__import__']('os').system('touch CANARY') }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__.__builtins__.open('CANARY', 'w') }}",
        "{{ dict.__class__ }}{{ dict.mro() }}",
        "{{ range.__self__ }}",
        "{{ messages.__class__.__init__.__globals__ }}",
        "{{ messages.append({'role': 'user'}) }}",
        "{{ messages[0].update(content='x') }}",
        "{% set x = messages.clear() %}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ '%s'|format(''.__class__) }}{{ ''.__class__.mro() }}",
        "{{ '{0.__init__.__globals__}'.format(self) }}",
        "{{ ''.format_map({'a': 1}.__class__) }}",
        "{% import 'os' as os %}{{ os.system('touch CANARY') }}",
        "{% from '/etc/passwd' import x %}",
        "{% include '/etc/passwd' %}",
        "{% extends '/etc/passwd' %}",
        "{% for f in ((1).__class__).__subclasses__() %}{{ f }}{% endfor %}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{% macro m() %}{{ caller.__globals__ }}{% endmacro %}{% call m() %}{% endcall %}",
        "{{ (messages|map(attribute='__class__')|list)[0].__mro__ }}",
        "{{ messages|map('attr', '__class__')|map('attr', '__base__')|list|first|attr('__subclasses__') }}",
        "{{ get_flashed_messages.__globals__ }}{{ config.items() }}{{ request.application }}",
        "{{ undefined_thing.__class__.__init__ }}",
        "{{ [].__reduce_ex__(2) }}",
        "{{ (x for x in y).gi_frame.f_globals }}",
        "{{ __import__('os') }}",
        "{{ open('CANARY', 'w') }}",
        "{{ exec('1') }}{{ eval('1') }}",
    ],
)
def test_a_template_reaches_nothing_of_python(template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = tmp_path / "canary"
    try:
        text = render(template.replace("CANARY", str(canary)))
    except PromptError as refusal:
        text = str(refusal)
    assert not canary.exists()
    for leaked in ("<class 'type'>", "<class 'object'>", "'__builtins__'", "root:x:0", "<module 'os'", "<function "):
        assert leaked not in text


# Time and memory ----------------------------------------------------------------------------------------------------

BOMBS = [
    "{{ 9 ** (9 ** 9) }}",
    "{{ 'a' * 10 ** 11 }}",
    "{{ [0] * 10 ** 11 }}",
    "{{ 'a'|center(10 ** 11) }}",
    "{{ 'a'.ljust(10 ** 11) }}",
    "{{ '%*d' % (10 ** 9, 1) }}{{ '%*d' % (10 ** 9, 1) }}",
    "{{ '{:>10000000000}'.format(1) }}",
    "{{ range(10 ** 10)|list }}",
    "{{ messages|tojson(indent=10 ** 10) }}",
    "{{ [1]|batch(10 ** 10, 'x')|list }}",
    "{% set ns = namespace(x='a') %}{% for i in range(64) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x='a') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
    "{% for a in range(9000) %}{{ 'x' * 9000 }}{% endfor %}",
    "{{ '[' * 300 }}" + "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "{{ 1 +" * 1 + " 1 +" * 20000 + " 1 }}",
    "{% for i in range(9 ** 5) %}" * 3 + "{% endfor %}" * 3,
    "{% macro m() %}{% for i in range(9**5) %}{% endfor %}{% endmacro %}{% for i in range(9**5) %}{{m()}}{% endfor %}",
]


@pytest.mark.parametrize("template", BOMBS)
def test_a_template_that_grows_or_goes_on_is_cut_off(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "SECONDS", 3.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    render("")  # so that the process is there
    began = time.monotonic()
    with pytest.raises(PromptError, match=r"chat template (was cut off|refuses these messages)"):
        render(template)
    assert time.monotonic() - began < 20  # 3 s are usual; the machine may be busy
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # kilobytes
    assert render("{{ messages[0].content }}") == "hi", "the next template is served"


def test_a_process_that_nobody_ends_gives_up_by_itself() -> None:
    """As after a kill -9 of the process that asked."""
    program = textwrap.dedent(
        """
        import sys; sys.path[:] = [p for p in sys.path if p]
        from workbench.models import templates
        templates._worker._begin()
        process = templates._worker._process
        loop = "{% for i in range(9**5) %}{% for j in range(9**5) %}{% endfor %}{% endfor %}"
        import json, os
        process.stdin.write(json.dumps(dict(template=loop, messages=[], names={}, reply=True)).encode() + b"\\n")
        process.stdin.flush()
        print(process.pid, flush=True)
        os._exit(1)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    end = time.monotonic() + 120
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < end, "it still works"
        time.sleep(0.5)


def test_a_fork_has_a_process_of_its_own() -> None:
    assert render("a") == "a"
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        text = render("{{ messages[0].content }}")
        templates._worker.close()
        os.write(writing, text.encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 10) == b"hi"
    os.close(reading)
    os.close(writing)
    assert render("b") == "b"


def test_a_loaded_model_with_a_template_of_its_own_is_a_strangers(tmp_path: Path) -> None:
    model = workbench.load("tiny-llama", progress=False)
    from workbench.models.tiny import tiny_checkpoint

    hf_model, tokenizer = tiny_checkpoint("llama")
    hf_model.save_pretrained(tmp_path)
    tokenizer.hf.chat_template = "{{ cycler.__init__.__globals__.os }}"
    tokenizer.hf.save_pretrained(tmp_path)
    stranger = workbench.load(str(tmp_path), progress=False)
    assert model.tokenizer.trusted
    assert not stranger.tokenizer.trusted
    with pytest.raises(PromptError, match=r"refuses these messages: SecurityError: access to attribute '__init__'"):
        workbench.Session(stranger).generate([{"role": "user", "content": "hi"}], max_new_tokens=1)
