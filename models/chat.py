"""Chat templates: Jinja text from a checkpoint, run in a sandbox with what such templates
expect."""

import datetime
import json

import jinja2
import jinja2.ext
import jinja2.sandbox

from models.wording import one_line


def render(template, messages, *, add_generation_prompt, **variables):
    """The prompt text of `messages`, a list of {"role": ..., "content": ...}.

    variables: what else the template may use, such as bos_token. Raises ValueError when the
    template does not compile, refuses the messages, breaks a rule of the sandbox, or fails in any
    other way: it is a program that somebody else wrote.
    """
    try:
        return (
            _environment()
            .from_string(template)
            .render(messages=messages, add_generation_prompt=add_generation_prompt, **variables)
        )
    except jinja2.TemplateError as error:
        reason = one_line(error)
    except Exception as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
    raise ValueError(f"the chat template refuses these messages: {reason}")


def _environment():
    """The settings and functions that templates are written against."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[jinja2.ext.loopcontrols, _Generation],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here it is only its body."""

    tags = frozenset({"generation"})

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    """JSON as it is: jinja2's own filter escapes HTML signs, which a model would then read."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message):
    raise jinja2.TemplateError(message)


def _strftime_now(form):
    return datetime.datetime.now().strftime(form)
