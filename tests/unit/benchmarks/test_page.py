"""The page of the benchmarks, its plots and the stored results."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from hack.plots.lines import Axis, LineChart, draw
from hack.plots.svg import THEMES
from tests.benchmarks import page, records, tables
from tests.benchmarks.suite import BENCHMARKS


def test_the_page_and_its_plots_are_current():
    """``make generate`` writes them."""
    for path, text in page.render(page.PAGE.read_text()).items():
        assert path.read_text() == text, path


def test_the_page_has_a_place_for_each_benchmark():
    text = page.PAGE.read_text()
    assert [one.name for one in BENCHMARKS if f"<!-- {one.name} -->" not in text] == []


@pytest.mark.parametrize("is_logarithmic", [False, True])
@pytest.mark.parametrize("points", [[], [(10, 0)], [(10, 5), (10, 5)], [(10, 0.02), (10_000, 130)]])
def test_all_points_are_inside_the_plot(is_logarithmic, points):
    """Also of one point, of equal ones and of none."""
    axis = Axis("pods", is_logarithmic=is_logarithmic)
    root = ET.fromstring(draw(LineChart("title", axis, axis, {"a": points}), THEMES["dark"]))
    for dot in root.iter("{http://www.w3.org/2000/svg}circle"):
        assert 80 <= float(dot.attrib["cx"]) <= 731
        assert 77 <= float(dot.attrib["cy"]) <= 305


def test_a_result_is_read_as_written(tmp_path, monkeypatch):
    """Floats are shortened."""
    monkeypatch.setattr(records, "BUSY_SECONDS", 0.01)
    recording = records.Recording("pods", seed=1, quick=True)
    record = recording.finish({"rows": [{"p50": 0.123456, "pods": 10}]})
    records.write(tmp_path, record)
    assert records.read("pods", tmp_path) == record
    assert record["figures"] == {"rows": [{"p50": 0.1235, "pods": 10}]}
    assert "small sizes" in page.circumstances(record)
    assert records.read("other", tmp_path) is None


def test_rounds_and_requests_of_the_load_are_tables():
    lines = [
        "kwok node                      210.0 pods/s to Running   p50   4.63 s   p99   5.08 s     199.0 deletes/s",
        "kwok node                      230.0 pods/s to Running   p50   4.61 s   p99   5.06 s     197.0 deletes/s",
        "pod tokens    pods/s of direct        0.29   target 0.38 MISSED",
        "all                                                 4.26                5.63                9.03",
        "kwok node                       20.0 pods/s to Running   p50   0.01 s   p99   0.02 s     203.8 deletes/s",
    ]
    text = tables.load({"figures": {"lines": lines}})
    assert "| bound directly | kwok node | 220.00 (210.00–230.00) |" in text
    assert "| 20 pods/s | kwok node | 20.00 | 0.01 | 0.02 | 203.80 |" in text
    assert "| bound directly | 4.26 | 5.63 | 9.03 |" in text


def test_log_lines_of_a_program_are_not_on_the_page():
    lines = ["2026-11-23 04:58:26 [info     ] stream started  verb=exec", "plain  702"]
    text = tables.printed({"figures": {"command": "python x", "lines": lines}})
    assert "stream" not in text
    assert "plain  702" in text
