"""The options of a log: decoded, validated and passed on as in the kubelet."""

from __future__ import annotations

import pytest
from multidict import MultiDict

from virtual_node.kubelet.base import Refusal
from virtual_node.kubelet.logs import log_options


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", {}),
        (
            "follow=true&previous=true&timestamps=true",
            {"follow": "true", "previous": "true", "timestamps": "true"},
        ),
        ("follow=false&previous=0&timestamps=FALSE", {}),
        ("follow=&previous=1&timestamps=yes", {"follow": "true", "previous": "true", "timestamps": "true"}),
        ("tailLines=0", {"tailLines": "0"}),
        (
            "tailLines=10&limitBytes=1&sinceSeconds=1",
            {"tailLines": "10", "limitBytes": "1", "sinceSeconds": "1"},
        ),
        ("tail=7", {"tailLines": "7"}),
        ("tail=all&tailLines=3", {}),
        ("sinceTime=2026-01-02T03:04:05Z", {"sinceTime": "2026-01-02T03:04:05Z"}),
        (
            "sinceTime=2026-01-02T03:04:05.123456789%2B02:00",
            {"sinceTime": "2026-01-02T03:04:05.123456789+02:00"},
        ),
        ("sinceTime=null", {}),
        ("stream=All&tailLines=1", {"tailLines": "1"}),
        ("stream=Stderr", {"stream": "Stderr"}),
        ("stream=Stdout&follow=true", {"follow": "true", "stream": "Stdout"}),
        ("insecureSkipTLSVerifyBackend=true&container=other&pretty=1", {}),
    ],
)
def test_options_are_passed_on(query: str, expected: dict[str, str]) -> None:
    """Under their names; defaults and options that are not for the container's log are not."""
    assert log_options(_query(query)) == expected


@pytest.mark.parametrize("value", ["", "x", "1.5", "1_000", " 1", "--1", "9223372036854775808", "٣"])
@pytest.mark.parametrize("name", ["tailLines", "limitBytes", "sinceSeconds"])
def test_an_invalid_number_cannot_be_decoded(name: str, value: str) -> None:
    """400, with the option's name."""
    with pytest.raises(Refusal, match=f"Unable to decode query: {name}") as refused:
        log_options(MultiDict({name: value}))
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "value",
    [
        "yesterday",
        "2026-01-02",
        "2026-01-02 03:04:05Z",
        "2026-01-02T03:04:05",
        "2026-13-02T03:04:05Z",
        "2026-W01-1T00:00:00Z",
    ],
)
def test_an_invalid_time_cannot_be_decoded(value: str) -> None:
    """400 for anything but RFC 3339."""
    with pytest.raises(Refusal, match="Unable to decode query: sinceTime") as refused:
        log_options(MultiDict({"sinceTime": value}))
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("tailLines=-1", "tailLines"),
        ("limitBytes=0", "limitBytes"),
        ("sinceSeconds=0", "sinceSeconds"),
        ("sinceSeconds=1&sinceTime=2026-01-02T03:04:05Z", "sinceSeconds"),
        ("stream=stdout", "stream"),
        ("stream=", "stream"),
        ("stream=Stdout&tailLines=1", "tailLines"),
    ],
)
def test_invalid_values_are_unprocessable(query: str, field: str) -> None:
    """422, with the option's name, where it can be decoded."""
    with pytest.raises(Refusal, match=f"Invalid request: {field}") as refused:
        log_options(_query(query))
    assert refused.value.status == 422


def _query(text: str) -> MultiDict[str]:
    from yarl import URL  # noqa: PLC0415

    return MultiDict(URL(f"http://x/?{text}").query)
