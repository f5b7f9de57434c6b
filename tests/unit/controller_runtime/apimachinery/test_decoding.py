"""Errors of files that cannot be decoded: the line of the text, or the field with a suggestion."""

from __future__ import annotations

import msgspec
import pytest

from controller_runtime.apimachinery.decoding import convert, decode_yaml


class Inner(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """A struct in a list, and in a mapping."""

    host_paths: list[str] = []
    labels: dict[str, str] | None = None


class Outer(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """What a file holds."""

    node_name: str = ""
    parts: list[Inner] = []
    by_name: dict[str, Inner] = {}
    one: Inner | None = None


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"nodename": "x"}, "unknown field `nodename`, did you mean nodeName?"),
        ({"parts": [{}, {"lables": {}}]}, "parts[1]: unknown field `lables`, did you mean labels?"),
        (
            {"byName": {"a": {"hostPath": []}}},
            "byName[...]: unknown field `hostPath`, did you mean hostPaths?",
        ),
        ({"one": {"label": {}}}, "one: unknown field `label`, did you mean labels?"),
        # A field of another struct is not suggested, because it would be just as wrong.
        ({"labels": {}}, "unknown field `labels`"),
        ({"parts": [{"labels": {"a": 1}}]}, "parts[0].labels[...]: Expected `str`, got `int`"),
        ([], "Expected `object`, got `array`"),
    ],
)
def test_names_the_wrong_field(document: object, said: str):
    """By its path; an unknown one with the most similar field of its struct."""
    with pytest.raises(ValueError, match=r".") as found:
        convert(document, Outer)
    assert str(found.value) == said


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: b\n---\n", {"a": "b"}),
        ("---\n# made by a script\n---\na: b\n...\n---\n---\n", {"a": "b"}),
        ("---\n", None),
        ("", None),
    ],
)
def test_empty_documents_do_not_count(text: str, value: object):
    """As for kubectl."""
    assert decode_yaml(text) == value


def test_puts_the_position_of_a_part_before_its_path():
    """As the user finds it in the whole file."""
    with pytest.raises(ValueError, match=r"^profiles\[0\]\.args\.parts\[0\]: unknown field `x`$"):
        convert({"parts": [{"x": 1}]}, Outer, where="profiles[0].args")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "a: [x\nb: }\n",
            "line 2, column 2: did not find expected ',' or ']' (while parsing a flow sequence)",
        ),
        ("a: b\nc: d: e\n", "line 2, column 5: mapping values are not allowed in this context"),
        ("a: b\nc: \x01\n", "line 2: control characters are not allowed"),
        ("a: *b\n", "line 1, column 4: found undefined alias"),
        (
            "a: b\n---\nc: d\n",
            "line 2, column 1: but found another document (expected a single document in the stream)",
        ),
    ],
)
def test_names_the_line_that_is_not_yaml(text: str, said: str):
    """In one line, without the parser's own name for its input."""
    with pytest.raises(ValueError, match=r".") as found:
        decode_yaml(text)
    assert str(found.value) == said
