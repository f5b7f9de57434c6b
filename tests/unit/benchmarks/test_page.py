"""The page of the benchmarks, its plots and the stored results."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from hack.plots.lines import Axis, LineChart, draw
from hack.plots.svg import THEMES
from tests.benchmarks import page, records
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
