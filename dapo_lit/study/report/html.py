"""The report as one HTML file: SVG inline, no script, nothing fetched, readable in light and dark and aloud."""

import colorsys
import html
import re
from pathlib import Path

from matplotlib.colors import to_hex, to_rgb

from dapo_lit.study.figures.style import FAINT, INK, ON_DARK, ON_PALE, PAPER
from dapo_lit.study.report.document import Bullets, Code, Document, Drawing, Heading, Prose, Table

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

CSS = """
:root { color-scheme: light dark; --ink: #1c1c1e; --paper: #ffffff; --rule: #d9d9de; --soft: #f4f4f6; --link: #0b57d0; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ececef; --paper: #17171a; --rule: #3a3a41; --soft: #222226; --link: #8ab4f8; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; }
h2 { font-size: 1.25rem; margin-top: 2.5rem; border-top: 1px solid var(--rule); padding-top: 1rem; }
h3 { font-size: 1.05rem; margin-top: 1.8rem; } a { color: var(--link); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
caption, figcaption { text-align: left; font-size: .85rem; padding: .4rem 0; caption-side: bottom; }
th { font-weight: 600; }
figure { margin: 1.2rem 0; } figure svg { width: 100%; max-width: 54rem; height: auto; }
svg text { fill: var(--ink); } details { margin: .4rem 0; }
pre, code { background: var(--soft); font-size: .85rem; } pre { padding: .8rem; overflow-x: auto; }
li { margin: .35rem 0; } summary { cursor: pointer; font-size: .9rem; } nav { font-size: .9rem; }
"""


def write_html(document: Document, out: Path) -> Path:
    """Writes report.html into `out` and returns its path."""
    body: list[str] = []
    contents: list[str] = []
    colours: set[str] = set()
    for block in document.blocks:
        match block:
            case Heading(text, level):
                anchor = re.sub(r"\W+", "-", text.lower()).strip("-")
                body.append(f'<h{level} id="{anchor}">{_inline(text)}</h{level}>')
                if level == 2:
                    contents.append(f'<a href="#{anchor}">{_inline(text)}</a>')
            case Prose(text):
                body.append(f"<p>{_inline(text)}</p>")
            case Bullets(items):
                body.append("<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in items) + "</ul>")
            case Code(text):
                body.append(f"<pre>{html.escape(text)}</pre>")
            case Table():
                body.append(_table(block))
            case Drawing():
                svg = inline_svg(block)
                colours |= set(re.findall(r"--x([0-9a-f]{6})", svg))
                caption = f"<figcaption>{_inline(block.caption)}</figcaption>"
                figure = f"<figure>{svg}{caption}</figure>"
                folded = f"<details><summary>{_inline(block.folded)}</summary>{figure}</details>"
                body.append(folded if block.folded else figure)
    variables = " ".join(f"--x{c}: {dark('#' + c)};" for c in sorted(colours))
    style = f"{CSS}@media (prefers-color-scheme: dark) {{ :root {{ {variables} }} }}"
    head = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(document.title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head>'
    )
    nav = "<nav>" + " · ".join(contents) + "</nav>"
    path = out / "report.html"
    path.write_text(f"{head}<body><h1>{_inline(document.title)}</h1>{nav}{''.join(body)}</body></html>\n")
    return path


def _inline(text: str) -> str:
    """Escaped text with **bold**, `code` and [links](to)."""
    escaped = html.escape(text, quote=False)
    escaped = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", escaped)
    return re.sub(r"`(.+?)`", r"<code>\1</code>", escaped)


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{_inline(column)}</th>' for column in table.columns)
    rows = "".join("<tr>" + "".join(f"<td>{_inline(str(cell))}</td>" for cell in row) + "</tr>" for row in table.rows)
    caption = f"<caption>{_inline(table.caption)}</caption>"
    return f'<div class="wide"><table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


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
    # text without a colour of its own is black by default, in the dark as well
    svg = svg.replace("<svg ", f'<svg role="img" aria-labelledby="{own}-t {own}-d" style="color: var(--ink)" ', 1)
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
