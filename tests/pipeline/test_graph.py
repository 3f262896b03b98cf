"""A plan's picture says in words and in colours what each step will do."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from dflash.pipeline.graph import drawing
from tests.pipeline.lab import Lab
from tests.pipeline.test_matrix import MATRIX

SVG = "{http://www.w3.org/2000/svg}"


def texts(picture: str) -> list[tuple[str, str]]:
    """(style, text) of every line of text."""
    root = ElementTree.fromstring(picture)
    return [(each.get("class", ""), each.text or "") for each in root.iter(f"{SVG}text")]


def words(picture: str) -> list[str]:
    return [text for _, text in texts(picture)]


def test_each_step_has_its_name_and_what_it_will_do(ran: Lab):
    found = texts(drawing(ran.plan("train.steps=7", "train.gpus=1")))
    assert [text for style, text in found if style == "name"] == ["check", "target", "prewarm", "train", "evaluate"]
    assert [text for style, text in found if style.startswith("end")] == ["run", "skip", "run", "run", "run"]
    assert ("end skip", "skip") in found
    assert [text for style, text in found if style == "soft"] == ["needs a GPU", "needs a GPU"]


def test_an_arrow_is_dashed_where_only_the_order_is_needed(lab: Lab):
    root = ElementTree.fromstring(drawing(lab.plan()))
    styles = [each.get("class") for each in root.iter(f"{SVG}path") if each.get("class")]
    assert sorted(styles) == ["arrow", "arrow", "arrow order", "arrow order"]


def test_steps_of_a_matrix_share_a_box_and_many_are_counted(lab: Lab):
    lab.file.write_text(MATRIX)
    found = texts(drawing(lab.plan("train:matrix.steps=[1,2,3,4]", "train:when=matrix.steps != 2")))
    assert ("soft", "8 ×") in found
    assert ("soft", "2 ×") in found
    assert [text for style, text in found if style == "row"][:4] == ["text=one", "text=two"] + [
        f"text=one, steps={steps}" for steps in (1, 2)
    ]
    assert ("row", "and 3 more: 1 left out, 2 run") in found
    assert ("row end out", "left out") in found


def test_finally_stands_apart(lab: Lab):
    lab.file.write_text(
        lab.file.read_text() + "finally:\n  - {name: tidy, uses: check}\n  - {name: tell, uses: check, when: failed}\n"
    )
    picture = drawing(lab.plan())
    assert {"finally, however the others end", "if failed"} <= set(words(picture))
    root = ElementTree.fromstring(picture)
    frame = next(each for each in root.iter(f"{SVG}rect") if each.get("class") == "apart")
    names = {each.text: float(each.get("y")) for each in root.iter(f"{SVG}text") if each.get("class") == "name"}
    assert {name for name, y in names.items() if y > float(frame.get("y"))} == {"tidy", "tell"}


def test_it_is_whole_and_asks_for_nothing_from_anywhere(lab: Lab):
    picture = drawing(lab.plan())
    assert ElementTree.fromstring(picture).get("role") == "img"
    assert re.findall(r"https?://[^\"]+", picture) == ["http://www.w3.org/2000/svg"]
    assert "prefers-color-scheme: dark" in picture
    defined = set(re.findall(r"(--[a-z]+):", picture))
    assert set(re.findall(r"var\((--[a-z]+)\)", picture)) <= defined


def test_words_that_are_markup_stay_words(lab: Lab):
    lab.file.write_text(MATRIX.replace("[one, two]", "['<b>&', two]"))
    assert "text=<b>&" in words(drawing(lab.plan()))


def test_a_character_that_no_xml_can_have_is_shown_as_one_that_is_missing(lab: Lab):
    lab.file.write_text(MATRIX.replace("[one, two]", '["\\e[1m", two]'))
    assert "text=\ufffd[1m" in words(drawing(lab.plan()))
