"""Which blocks of a page are commands, and which have a reason not to run."""

from __future__ import annotations

import pytest
import yaml

from hack.image import build
from tests.clusters.docs import documents
from tests.clusters.docs.documents import PAGES, ROOT, blocks, commands

PAGE = """# A page

```sh
one \\
  --more
```

1. A step.

   ```console
   $ two --flag \\
       value
   what it says
   $ three
   ```

<!-- run on its own -->
```sh
alone
```

<!-- not run: needs a moon -->
```bash
four
```

```yaml
# values.yaml: a comment
a: 1
```

```yaml
b: 2
```
"""


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Write a page with a block of each sort."""
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    path = tmp_path / "page.md"
    path.write_text(PAGE, encoding="utf-8")
    return path


def test_blocks_are_commands_or_files(page):
    """Commands without their output, files with a name, and the reason of a block that cannot run."""
    one, two, alone, four, values = blocks(page)
    assert one.script == "one \\\n  --more\n"
    assert (one.line, one.place, one.reason) == (4, "page.md:4", "")
    assert two.script == "two --flag \\\n    value\nthree\n"
    assert two.output == ("what it says",)
    assert (alone.alone, two.alone) == (True, False)
    assert (four.script, four.reason) == ("four\n", "needs a moon")
    assert (values.file, values.script) == ("values.yaml", "# values.yaml: a comment\na: 1\n")


def test_a_script_is_split_into_commands():
    """Pipes, conjunctions, comments and continued lines; quotations stay whole."""
    script = "kubectl get pods | grep 'a b'  # why\nhelm list && \\\n  helm test vn; true\n"
    assert list(commands(script)) == [
        ["kubectl", "get", "pods"],
        ["grep", "a b"],
        ["helm", "list"],
        ["helm", "test", "vn"],
        ["true"],
    ]


def test_most_blocks_run():
    """Otherwise the page would hardly be tested."""
    found = [one for path in PAGES for one in blocks(path) if not one.file]
    assert len(found) > 70
    pages = {one.page.relative_to(ROOT).as_posix() for one in found if not one.reason}
    assert {
        "README.md",
        "docs/operate/install.md",
        "docs/operate/add-a-cluster.md",
        "docs/use/services.md",
    } <= pages


KIND = {
    ("create", "cluster"): {"--config", "--image", "--kubeconfig", "--name", "--retain", "--wait"},
    ("get", "kubeconfig"): {"--internal", "--name"},
    ("load", "docker-image"): {"--name", "--nodes"},
    ("delete", "cluster"): {"--kubeconfig", "--name"},
}
"""Commands of kind and their flags, from its manual (kind.sigs.k8s.io, v0.29): no test machine has Docker."""


def test_commands_of_kind_are_those_of_its_manual():
    """Each names its cluster, and clusters that the page has created."""
    found = [
        words
        for block in blocks(ROOT / "docs/operate/install.md")
        for words in commands(block.script)
        if words[0] == "kind"
    ]
    assert len(found) == 7
    created = {words[words.index("--name") + 1] for words in found if words[1] == "create"}
    for words in found:
        flags = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert flags <= KIND[words[1], words[2]], words
        assert words[words.index("--name") + 1] in created, words
    text = (ROOT / "docs/operate/install.md").read_text(encoding="utf-8")
    assert "https://lower1-control-plane:6443" in text  # what `kind get kubeconfig --internal` has


@pytest.mark.parametrize("page", ["README.md", "docs/operate/install.md"])
def test_the_image_of_the_chart_is_built_and_loaded_before_the_installation(page):
    """Until it is published: a node could not pull it."""
    found = [words for block in blocks(ROOT / page) for words in commands(block.script)]
    image = f"{build.REPOSITORY}:{build.version()}"
    built = found.index(["docker", "build", "--tag", image, "."])
    assert found[built + 1] == ["kind", "load", "docker-image", image, "--name", "upper"]
    assert any(words[:2] == ["helm", "install"] for words in found[built + 1 :])
    values = yaml.safe_load((ROOT / "charts/virtual-node/values.yaml").read_text(encoding="utf-8"))
    assert image.startswith(f"{values['image']['registry']}/{values['image']['repository']}:")
