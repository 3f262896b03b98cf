"""The report in a real browser: nothing is complained of, asked for or cut off, on a phone and on a desk."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dflash.pipeline.comparing import Difference
from dflash.pipeline.report.page import page
from dflash.pipeline.share import Share
from dflash.training.usage import Worker
from tests import browser as driver
from tests.browser import Page, browser
from tests.pipeline.report.sample import RECORD, contents, noted, rows, samples

LONG = "work/" + "a-very-long-name-without-any-space" * 8


@pytest.fixture(scope="module")
def opened() -> Iterator[Page]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with everything in it, and texts that no line holds."""
    file = tmp_path_factory.mktemp("report") / "report.html"
    steps = [{**each, "error": LONG if each["name"] == "train" else None} for each in RECORD["steps"]]
    differences = [Difference(f"config.{LONG}", LONG, LONG, "blocking", LONG)]
    record = {**RECORD, "root": LONG, "status": "failed", "steps": steps}
    file.write_text(page(contents(record, rows(3000), previous=RECORD, differences=differences)))
    return file


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_is_whole_at_any_width_and_asks_for_nothing(opened: Page, report: Path, width: int, scheme: str):
    opened.open(report, width, scheme=scheme)
    assert opened.complaints() == []
    assert opened.requests() == [report.as_uri()]
    assert opened.value("document.documentElement.scrollWidth") == width
    dark = opened.value("getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).every(one => one < 60)")
    assert dark == (scheme == "dark")
    assert colours(opened.picture(height=1200)) > 20


def test_no_table_is_wider_than_a_phone_however_large_its_figures(opened: Page, tmp_path: Path):
    made = [noted(busy, gb, role) for role in ("target", "drafter") for busy, gb in [(0.5, 98.5), (1.0, 99.5)] * 8]
    crew = [Worker(rank, found[0]["role"], samples(found)) for rank, found in enumerate(made)]
    whole = contents()
    (training,) = whole.trainings
    roles = {"target": range(16), "drafter": range(16, 32)}
    for target_gpus in (1, 8):
        file = tmp_path / "report.html"
        ours = replace(training, roles=roles, workers=crew, target_gpus=target_gpus)
        file.write_text(page(replace(whole, trainings=[ours])))
        opened.open(file, 360)
        beyond = opened.value("[...document.querySelectorAll('.wide')].map(e => e.scrollWidth - e.clientWidth)")
        assert beyond == [0, 0, 0]


def test_what_is_said_of_a_log_stands_apart_from_its_charts(opened: Page, tmp_path: Path):
    whole = contents()
    (training,) = whole.trainings
    file = tmp_path / "report.html"
    file.write_text(page(replace(whole, trainings=[replace(training, share=Share(50, "20261129T163012-local"))])))
    opened.open(file, 1280)
    told, charts = "document.querySelector('section > .lead')", "document.querySelector('div.grid')"
    gap = f"{charts}.getBoundingClientRect().top - {told}.getBoundingClientRect().bottom"
    assert opened.value(gap) == 10


def test_text_is_as_large_on_a_phone_as_on_a_desk_and_stands_out_in_either_scheme(opened: Page, report: Path):
    for width in (360, 1280):
        opened.open(report, width)
        sizes = opened.value("[...document.querySelectorAll('.plot span')].map(e => e.getBoundingClientRect().height)")
        assert min(sizes) >= 14
    for scheme in ("light", "dark"):
        opened.open(report, 1280, scheme=scheme)
        for ink in ("--ink", "--soft", "--good", "--bad"):
            assert contrast(*(variable(opened, name) for name in (ink, "--card"))) >= 4.5
        for ink in ("--one", "--two"):  # lines and bars: WCAG asks for less of graphics than of text
            assert contrast(*(variable(opened, name) for name in (ink, "--card"))) >= 3


def test_every_chart_has_its_text_and_every_table_its_heads(opened: Page, report: Path):
    opened.open(report, 1280)
    nodes = opened.tell("Accessibility.getFullAXTree")["nodes"]
    pictures = [each for each in nodes if each["role"]["value"] in ("image", "img") and not each["ignored"]]
    assert len(pictures) == opened.value("document.querySelectorAll('svg').length")
    assert all(each["name"]["value"] for each in pictures)
    assert opened.value("[...document.querySelectorAll('table')].every(e => e.querySelector('th[scope=col]'))")
    assert opened.value("document.querySelectorAll('main, h1').length") == 2


def test_a_browser_that_hangs_hangs_no_test(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(driver, "PATIENCE_S", 0.05)
    (heard, commands), (answers, unused) = os.pipe(), os.pipe()
    try:
        with pytest.raises(AssertionError, match="has said nothing"):
            Page(commands, answers)
    finally:
        for each in (heard, commands, answers, unused):
            os.close(each)


def variable(opened: Page, name: str) -> str:
    return opened.value(f"getComputedStyle(document.documentElement).getPropertyValue('{name}').trim()")


def contrast(one: str, other: str) -> float:
    """WCAG 2's contrast of two colours, as `#rgb` or `#rrggbb`."""
    light = sorted((luminance(one), luminance(other)))
    return (light[1] + 0.05) / (light[0] + 0.05)


def luminance(colour: str) -> float:
    digits = colour.removeprefix("#")
    digits = "".join(2 * each for each in digits) if len(digits) == 3 else digits
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def colours(png: bytes) -> int:
    """How many different triples of bytes a PNG's filtered lines hold: a blank one has next to none."""
    place, data = 8, b""
    while place < len(png):
        size, kind = int.from_bytes(png[place : place + 4], "big"), png[place + 4 : place + 8]
        data += png[place + 8 : place + 8 + size] if kind == b"IDAT" else b""
        place += 12 + size
    lines = zlib.decompress(data)
    return len({lines[at : at + 3] for at in range(0, len(lines) - 2, 3)})
