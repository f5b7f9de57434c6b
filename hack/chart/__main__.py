"""``python -m hack.chart``: bring what is made from the code up to date."""

from __future__ import annotations

from hack.chart import rights


def main() -> int:
    """Write the files that differ; returns the exit code."""
    for file, text in ((rights.FILE, rights.render()),):
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
            print(f"wrote {file}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
