"""The view of a browser, from its URL's query."""

from __future__ import annotations

from virtual_node.web.groups import Row, View, of_query


def test_reads_a_query() -> None:
    """Filters, open items and their page."""
    query = {
        "search": " Web ", "cluster": "tokyo", "namespace": "shop", "status": "trouble", "groups": "80",
        "open": "a/b/c,d/e/f", "pod": "shop/web", "detail": "tokyo",
    }  # fmt: skip
    assert of_query(query) == View(
        search="web", cluster="tokyo", namespace="shop", state="trouble", groups=80, open=("a/b/c", "d/e/f"),
        pod="shop/web", detail="tokyo",
    )  # fmt: skip


def test_invalid_parameters_are_left_out() -> None:
    """And the size is limited."""
    assert of_query({"status": "<script>", "groups": "x", "pods": "-1", "open": ",,"}) == View()
    view = of_query(
        {"groups": "9" * 5000, "pods": "99999", "open": ",".join("abcdefghijk"), "search": "x" * 9999}
    )
    assert (view.groups, view.pods, len(view.open), len(view.search)) == (400, 500, 8, 320)
    assert of_query({"groups": "²"}) == View()


def test_selects_by_cluster_namespace_and_text() -> None:
    """All of them together."""
    row = Row(
        "u", {"namespace": "shop", "cluster": "tokyo", "state": "running"}, "shop web running", ("Pod", "web")
    )
    assert View().has(row)
    assert View(search="web", cluster="tokyo", namespace="shop").has(row)
    assert not View(search="db").has(row)
    assert not View(cluster="oslo").has(row)
    assert not View(namespace="bank").has(row)
