"""The HTML page: whole, self-contained, escaped, legible in both schemes, bounded."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files

import pytest

from ettrain.account.ledger import account as account_for
from ettrain.report.html import RANKS_DRAWN, RESOLUTION, render_html, timeline_data, timeline_of

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Checks that elements nest, and collects what matters."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.texts, self.scripts, self.ids = [], [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.scripts if self.open and self.open[-1] == "script" else self.texts).append(data)


def test_the_page_is_well_formed(any_story):
    page = Page(render_html(*any_story))
    assert page.tags.count("main") == page.tags.count("h1") == page.tags.count("title") == 1
    assert len(page.ids) == len(set(page.ids))


def test_nothing_comes_from_elsewhere(any_story):
    text = render_html(*any_story)
    page = Page(text)
    links = [value for _, name, value in page.attributes if name in ("src", "href", "action", "srcset", "data", "poster")]
    assert links == ["data:,"]
    assert not {"img", "iframe", "object", "embed", "base", "form", "svg"} & set(page.tags)
    assert "url(" not in text
    assert "@import" not in text
    assert not re.search(
        r"https?://", files("ettrain.report").joinpath("page.js").read_text() + files("ettrain.report").joinpath("page.css").read_text()
    )


def test_its_policy_allows_its_own_script_and_no_other(story):
    page = Page(render_html(*story("two_failures")))
    policy = next(value for tag, name, value in page.attributes if tag == "meta" and name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none'")
    assert "unsafe-inline' 'unsafe-eval" not in policy
    script = page.scripts[-1]
    assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy
    assert "unsafe" not in policy.split("script-src")[1]


def test_a_nasty_job_cannot_break_out(story):
    text = render_html(*story("nasty"))
    assert "<script>alert" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    text.encode("utf-8")
    page = Page(text)
    assert page.tags.count("script") == 2
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    assert "<script>alert('x')</script>" in "".join(page.texts), "shown as text, not lost"
    json.loads(page.scripts[0])


def test_the_numbers_on_the_page_are_those_of_the_report(story):
    told, job = story("two_failures")
    text = "".join(Page(render_html(told, job)).texts)
    assert f"{told.ledger.ett_pct:.1f}%" in text
    for words in (
        "Time to start",
        "Interruptions",
        "killed",
        "rank 1 was ended by SIGKILL",
        "a checkpoint at step",
        "lost in all",
        "torchrun 2.8.0 on 1 node",
    ):
        assert words in text


def test_what_the_source_cannot_carry_is_said(story):
    text = "".join(Page(render_html(*story("unsupported"))).texts)
    assert "Effective training time: not in this source." in text
    assert "Where the time went" not in text


def test_tables_have_heads_and_captions(story):
    page = Page(render_html(*story("two_failures")))
    assert page.tags.count("table") == page.tags.count("caption") == page.tags.count("thead") == 4
    scopes = [value for tag, name, value in page.attributes if tag == "th" and name == "scope"]
    assert len(scopes) == page.tags.count("th")


def test_the_timeline_covers_the_job(any_story):
    told, job = any_story
    timeline = timeline_of(told, job)
    data = timeline_data(told, job, timeline)
    for row in data["rows"]:
        tiles = row["tiles"]
        assert len(tiles) % 4 == 0
        assert all(length > 0 for length in tiles[1::4])
        assert all(leaf < len(data["leaves"]) for leaf in tiles[2::4])
        assert all(part < len(data["parts"]) for part in tiles[3::4])
        if row["kind"] == "job":
            assert sum(tiles[0::4]) + sum(tiles[1::4]) == data["wall"]
            assert sum(tiles[0::4]) == 0
        if row["kind"] == "rank":
            assert sum(tiles[0::4]) + sum(tiles[1::4]) <= data["wall"]


def test_background_spans_have_lanes_of_their_own(story):
    rows = timeline_of(*story("two_failures")).rows
    assert [row.kind for row in rows] == ["job", "rank", "lane", "rank", "lane"]
    assert {piece.part for row in rows if row.kind == "lane" for piece in row.pieces} == {"write"}


def test_a_wide_job_is_bounded_and_says_so(story):
    _, job = story("clean")
    attempt = job.attempts[0]
    ranks = [replace(attempt.ranks[number % 2], rank=number, world=200) for number in range(200)]
    wide = replace(job, attempts=[replace(attempt, ranks=ranks)])
    told = account_for(wide)
    timeline = timeline_of(told, wide)
    assert sum(row.kind == "rank" for row in timeline.rows) == RANKS_DRAWN
    assert any("64 that trained least" in remark for remark in timeline.remarks)
    assert "64 that trained least" in render_html(told, wide)


def test_many_attempts_are_bounded(story):
    told, job = story("many")
    timeline = timeline_of(told, job)
    assert all(len(row.pieces) <= 2 * RESOLUTION + 2 for row in timeline.rows)
    assert any("For display only" in remark for remark in timeline.remarks)
    assert len(render_html(told, job)) < 1_000_000


def luminance(colour):
    values = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    values = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return 0.2126 * values[0] + 0.7152 * values[1] + 0.0722 * values[2]


@pytest.mark.parametrize("scheme", [0, 1])
def test_text_has_contrast_in_both_schemes(scheme):
    css = files("ettrain.report").joinpath("page.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", css, flags=re.DOTALL)
    assert len(blocks) == 2
    values = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", blocks[scheme]))
    for text in ("ink", "dim", "good", "warn"):
        for ground in ("ground", "panel"):
            light, dark = sorted((luminance(values[text]), luminance(values[ground])), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to parse the page's script")
def test_the_script_parses(tmp_path):
    script = tmp_path / "page.js"
    script.write_text(files("ettrain.report").joinpath("page.js").read_text(), encoding="utf-8")
    subprocess.run(["node", "--check", str(script)], check=True)
