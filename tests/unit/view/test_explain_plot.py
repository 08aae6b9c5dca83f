"""The picture of a fit: what it shows is what the fit says, and it is a file that programs take."""

import xml.etree.ElementTree as ET

import pytest

from vindicate.cli.page import as_picture, require_ours, write_page
from vindicate.errors import MisuseError
from vindicate.stats.wavefit import fit_waves
from vindicate.stats.waves import CARDS
from vindicate.view.explain_plot import MARK, explain_svg

CARD = CARDS["rtx-pro-6000"]
SVG = "{http://www.w3.org/2000/svg}"


def picture(measured, knob="K"):
    fit = fit_waves(256, 512, sms=CARD.sms, levels=[48, 64, 80, 96], measured=measured)
    return explain_svg(knob, CARD, (256, 512), fit)


def test_draws_every_measured_point_higher_the_more_it_gains():
    root = ET.fromstring(picture({64: 12.8, 80: 1.2, 96: 5.7}))
    points = {float(one.get("cx")): float(one.get("cy")) for one in root.iter(f"{SVG}circle") if one.get("fill")}
    heights = [points[x] for x in sorted(points)]
    assert len(heights) == 3
    assert heights[0] < heights[2] < heights[1]  # 64 above 96 above 80; y grows downwards


def test_draws_lines_alone_where_nothing_was_measured_and_escapes_the_name():
    root = ET.fromstring(picture({}, knob="<K>&"))
    assert len(list(root.iter(f"{SVG}polyline"))) == 3
    assert not list(root.iter(f"{SVG}circle"))
    assert "<K>&" in root.find(f"{SVG}title").text


def test_a_png_is_one_and_other_endings_are_refused(tmp_path):
    assert as_picture(tmp_path / "p.png", picture({}), MARK).startswith(b"\x89PNG\r\n")
    assert as_picture(tmp_path / "p.svg", picture({}), MARK).startswith(b"<svg")
    with pytest.raises(MisuseError, match="neither in"):
        as_picture(tmp_path / "p.pdf", picture({}), MARK)


@pytest.mark.parametrize("name", ["p.svg", "p.png"])
def test_replaces_its_own_picture_and_nobody_elses(tmp_path, name):
    path = tmp_path / name
    for _ in range(2):
        write_page(path, as_picture(path, picture({}), MARK), MARK)
    path.write_bytes(b"somebody's")
    with pytest.raises(MisuseError, match="none of ours"):
        write_page(path, b"x", MARK)
    with pytest.raises(MisuseError):
        require_ours(path, MARK)
    assert path.read_bytes() == b"somebody's"
    write_page(path, b"agreed", MARK, yes=True)
    assert path.read_bytes() == b"agreed"
