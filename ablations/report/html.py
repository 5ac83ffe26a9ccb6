"""A document as one HTML file: nothing fetched, readable without its scripts, in light and dark and aloud.

page.html holds the layout and the style; paragraphs and captions are Markdown.
"""

import html
import itertools
import json
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markdown_it import MarkdownIt
from markupsafe import Markup

from ablations.figures.style import Drawing
from ablations.files.atomic import write_text
from ablations.report.document import Buttons, Document, Part, Table
from ablations.texts import read_text
from ablations.web_page import allowed, packed

MARKDOWN = MarkdownIt("commonmark", {"html": False}).disable(["link", "image", "autolink"])


FOLDER = Path(__file__).parent
SCRIPTS = [Markup(read_text(FOLDER / name)) for name in ("uplot.js", "page.js")]
"""uPlot 1.6.32, which draws curves, and the page's own."""


def write_html(document: Document, file: Path) -> Path:
    """Writes a document as a page and returns its path."""
    contents: list[tuple[str, str]] = []
    parts = [_rendered(part, contents) for part in document.parts]
    page = Environment(loader=FileSystemLoader(FOLDER), autoescape=True).get_template("page.html")
    filled = page.render(
        title=document.title,
        contents=contents,
        parts=parts,
        data=packed(json.dumps(document.explored, separators=(",", ":")).encode()),
        explored=document.explored is not None,
        scripts=SCRIPTS,
        allowed=Markup(allowed(SCRIPTS)),
    )
    write_text(file, filled + "\n")
    return file


def _rendered(part: Part, contents: list[tuple[str, str]]) -> dict[str, Any]:
    """The fields of a part for page.html; headings of the second level go into `contents` (anchor, text)."""
    match part:
        case Table():
            return {"table": part, "caption": Markup(MARKDOWN.renderInline(part.caption))}
        case Buttons():
            return {"links": part.links}
        case Drawing():
            caption = Markup(MARKDOWN.renderInline(part.caption))
            return {"svg": Markup(inline_svg(part)), "caption": caption}
    tokens = MARKDOWN.parse(part)
    for opening, text in itertools.pairwise(tokens):
        if opening.type == "heading_open":
            anchor = re.sub(r"\W+", "-", text.content.lower()).strip("-")
            opening.attrSet("id", anchor)
            if opening.tag == "h2":
                contents.append((anchor, text.content))
    return {"text": Markup(MARKDOWN.renderer.render(tokens, MARKDOWN.options, {}))}


def inline_svg(drawing: Drawing) -> str:
    """A figure's SVG for a page: titled and described, ids of its own."""
    svg = drawing.svg
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    own = re.sub(r"\W", "_", drawing.name)
    svg = re.sub(r'\bid="', f'id="{own}-', svg)
    svg = re.sub(r"url\(#", f"url(#{own}-", svg)
    svg = re.sub(r'href="#', f'href="#{own}-', svg)
    # a narrow figure keeps its size on a wide page
    width = re.search(r'\bwidth="([\d.]+)pt"', svg)
    style = f"max-width: min(54rem, {1.6 * float(width[1]):.0f}pt)" if width else ""
    svg = svg.replace("<svg ", f'<svg role="img" aria-labelledby="{own}-t {own}-d" style="{style}" ', 1)
    title = f'<title id="{own}-t">{html.escape(drawing.name.replace("_", " "))}</title>'
    described = f'<desc id="{own}-d">{html.escape(drawing.alt)}</desc>'
    return re.sub(r"(<svg [^>]*>)", lambda m: m[1] + title + described, svg, count=1)
