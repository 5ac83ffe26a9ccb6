"""The report as one HTML file: SVG inline, no script, nothing fetched, readable in light and dark and aloud.

The text is rendered from the report's Markdown into page.html, which holds the style.
"""

import colorsys
import html
import itertools
import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from markdown_it import MarkdownIt
from markupsafe import Markup
from matplotlib.colors import to_hex, to_rgb

from dapo_lit.study.figures.drawing import Drawing
from dapo_lit.study.figures.style import FAINT, INK, ON_DARK, ON_PALE, PAPER
from dapo_lit.study.report.document import Document, Part, Table

DARK_PAPER = "#17171a"
FIXED = {
    INK: "#ececef",
    PAPER: DARK_PAPER,
    FAINT: "#9d9da5",
    "#d9d9de": "#3a3a41",
    "#f4f4f6": "#222226",
    "#000000": "#ececef",
}
FIXED |= {ON_DARK: ON_DARK, ON_PALE: ON_PALE}  # numbers on a heat map, whose colours stay
"""Colours of the page itself, in the dark."""

MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["link", "image", "autolink"])


def write_html(document: Document, out: Path) -> Path:
    """Writes report.html into `out` and returns its path."""
    contents: list[tuple[str, str]] = []
    parts = [_rendered(part, contents) for part in document.parts]
    colours = sorted({colour for part in parts for colour in re.findall(r"--x([0-9a-f]{6})", part.get("svg", ""))})
    page = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True).get_template("page.html")
    path = out / "report.html"
    variables = " ".join(f"--x{colour}: {dark('#' + colour)};" for colour in colours)
    path.write_text(page.render(title=document.title, contents=contents, parts=parts, dark_colours=variables) + "\n")
    return path


def _rendered(part: Part, contents: list[tuple[str, str]]) -> dict[str, str]:
    """What page.html shows of a part; headings of the second level go into `contents` (anchor, text)."""
    match part:
        case Table():
            caption = f"<table>\n<caption>{MARKDOWN.renderInline(part.caption)}</caption>"
            table = MARKDOWN.render(part.markdown()).replace("<table>", caption, 1).replace("<th>", '<th scope="col">')
            return {"table": Markup(table)}
        case Drawing():
            caption = Markup(MARKDOWN.renderInline(part.caption))
            return {"svg": Markup(inline_svg(part)), "caption": caption, "folded": part.folded}
    tokens = MARKDOWN.parse(part)
    for opening, text in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            anchor = re.sub(r"\W+", "-", text.content.lower()).strip("-")
            opening.attrSet("id", anchor)
            if opening.tag == "h2":
                contents.append((anchor, text.content))
    return {"text": Markup(MARKDOWN.renderer.render(tokens, MARKDOWN.options, {}))}


def inline_svg(drawing: Drawing) -> str:
    """A figure's SVG for a page: titled and described, ids of its own, every colour a variable with a dark twin."""
    svg = drawing.svg
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    own = re.sub(r"\W", "_", drawing.name)
    svg = re.sub(r'\bid="', f'id="{own}-', svg)
    svg = re.sub(r"url\(#", f"url(#{own}-", svg)
    svg = re.sub(r'href="#', f'href="#{own}-', svg)
    svg = re.sub(r"#([0-9a-f]{6})\b(?=[;\"' ])", lambda m: f"var(--x{m[1]}, #{m[1]})", svg)
    # text without a colour of its own is black by default, in the dark as well; a narrow figure is not blown up
    width = re.search(r'\bwidth="([\d.]+)pt"', svg)
    style = "color: var(--ink)" + (f"; max-width: min(54rem, {1.6 * float(width[1]):.0f}pt)" if width else "")
    svg = svg.replace("<svg ", f'<svg role="img" aria-labelledby="{own}-t {own}-d" style="{style}" ', 1)
    title = f'<title id="{own}-t">{html.escape(drawing.name.replace("_", " "))}</title>'
    described = f'<desc id="{own}-d">{html.escape(drawing.alt)}</desc>'
    return re.sub(r"(<svg [^>]*>)", lambda m: m[1] + title + described, svg, count=1)


def dark(colour: str) -> str:
    """The twin of a colour on the dark page: lighter until it stands out from it 3.5 to 1."""
    if colour in FIXED:
        return FIXED[colour]
    hue, light, saturation = colorsys.rgb_to_hls(*to_rgb(colour))
    twin = colour
    while contrast(twin, DARK_PAPER) < 3.5 and light < 1:
        light = min(1.0, light + 0.02)
        twin = to_hex(colorsys.hls_to_rgb(hue, light, saturation))
    return twin


def contrast(first: str, second: str) -> float:
    """WCAG contrast ratio of two colours, 1 to 21.

    >>> contrast("#000000", "#ffffff")
    21.0
    """
    bright, dim = sorted((_luminance(first), _luminance(second)), reverse=True)
    return round((bright + 0.05) / (dim + 0.05), 3)


def _luminance(colour: str) -> float:
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
