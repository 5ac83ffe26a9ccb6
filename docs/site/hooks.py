"""What the site needs besides docs/: linked files of the repository, GitHub's anchors, formulas, tables; and the check
that no two pages say the same (repeated.py).

The pages stay as they are for a reader on disk or on GitHub. Here a link that leaves docs/ is followed: a page it leads
to becomes a page of the site at its path in the repository, a folder is its README.md, a notebook becomes a page, any
other file is copied. Formulas become MathML: a browser fetches nothing.
"""

import os
import posixpath
import re
from html import unescape
from pathlib import Path
from typing import Any

import latex2mathml.converter
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter
from pymdownx.slugs import slugify
from repeated import in_words
from tables import table

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)\s#]+)(#[^)\s]*)?(?=\))")
log = get_plugin_logger("site")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Anchors as on GitHub; `folder/*` in the navigation becomes the pages of the folder."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    for section in config.nav or []:
        for name, entries in section.items():
            section[name] = [page for entry in entries for page in _expanded(entry)]
    return config


def on_pre_build(**_: Any) -> None:
    """What two pages say is a warning, which ends a strict build."""
    for line in in_words():
        log.warning(f"{line}; say it on one page, and link to it from the other")


def _expanded(entry: Any) -> list[Any]:
    if not isinstance(entry, str) or not entry.endswith("/*"):
        return [entry]
    folder = entry.removesuffix("/*")
    here, above = sorted((ROOT / "docs" / folder).glob("*.md")), ROOT / folder
    pages: list[Any] = [f"{folder}/{page.name}" for page in here]
    studies = [readme.parent.name for readme in sorted(above.glob("*/README.md"))]  # their titles are too long
    pages += [{name.replace("_", " "): f"{folder}/{name}/README.md"} for name in studies]
    return pages + [f"{folder}/{notebook.stem}.md" for notebook in sorted(above.glob("*.ipynb"))]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what pages link to outside docs/, and what those pages link to in turn."""
    waiting = [Path(str(file.abs_src_path)) for file in files if file.is_documentation_page()]
    wanted = [entry for section in config.nav or [] for entries in section.values() for entry in entries]
    paths = [path for entry in wanted for path in (entry.values() if isinstance(entry, dict) else [entry])]
    waiting += [source for path in paths if (source := _source(path))]
    seen: set[Path] = set()
    while waiting:
        source = waiting.pop()
        if source in seen:
            continue
        seen.add(source)
        if files.get_file_from_path(_place(source)) is None:
            _add(source, files, config)
        if source.suffix == ".md":
            found = (_target(source, link[1]) for link in LINK.finditer(source.read_text(encoding="utf-8")))
            waiting += [target for target in found if target is not None]
    return files


def _source(entry: str) -> Path | None:
    """The file behind an entry of the navigation that is not in docs/."""
    candidates = (ROOT / entry, (ROOT / entry).with_suffix(".ipynb"))
    return next((path for path in candidates if path.is_file()), None)


def _target(source: Path, link: str) -> Path | None:
    """The file that a link leads to, of a folder its README.md, study.json, or the next README.md below or above."""
    target = Path(os.path.normpath(source.parent / link))
    inside = [target / "README.md", target / "study.json", *sorted(target.glob("*/README.md"))]
    inside += [above / "README.md" for above in target.parents if above.is_relative_to(ROOT)]
    candidates = inside if target.is_dir() else [target]
    return next((path for path in candidates if path.is_file() and path.is_relative_to(ROOT)), None)


def _place(source: Path) -> str:
    """Path in the site's sources: docs/ is the top, all else keeps its path in the repository."""
    path = source.relative_to(ROOT)
    path = path.relative_to("docs") if path.parts[0] == "docs" else path
    return (path.with_suffix(".md") if path.suffix == ".ipynb" else path).as_posix()


def _add(source: Path, files: Files, config: MkDocsConfig) -> None:
    place = _place(source)
    if source.suffix != ".ipynb":
        files.append(File.generated(config, place, abs_src_path=str(source)))
        return
    text, resources = MarkdownExporter().from_filename(str(source))
    stem = source.stem
    for name, picture in resources["outputs"].items():
        text = text.replace(f"![png]({name})", f"![Drawn by the code above]({stem}_{name})")
        files.append(File.generated(config, f"notebooks/{stem}_{name}", content=picture))
    files.append(File.generated(config, place, content=text))


SEARCHED = {"configuration.md": 8, "reference/": 2, "experiments/": 0.1, "CHANGELOG.md": 0.1}
"""Beginning of a page's path -> its weight in the search: a word of a key is looked up more often than a study's."""


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    weights = [weight for start, weight in SEARCHED.items() if page.file.src_uri.startswith(start)]
    if weights:
        page.meta["search"] = {"boost": weights[0]}
    source = _original(page.file)
    if source is None:
        return markdown

    def moved(link: re.Match[str]) -> str:
        target = _target(source, link[1])
        return link[0] if target is None else _link(page, _place(target)) + (link[2] or "")

    markdown = re.sub(r"^<!-- table: (\w+) -->$", lambda marker: table(marker[1]), markdown, flags=re.M)
    markdown = re.sub(
        r"^ *```(?:bash)?\n.*?^ *```$", lambda block: REMARK.sub(_shorter, block[0]), markdown, flags=re.M | re.S
    )
    return LINK.sub(moved, markdown)


REMARK = re.compile(r"^( *)(?![ #])(.*?) {2,}(# .*)$", re.M)


def _shorter(line: re.Match[str]) -> str:
    """A remark goes above its command if both do not fit on a line."""
    indent, command, remark = line.groups()
    joined = f"{indent}{command}  {remark}"
    return joined if len(joined) < 100 else f"{indent}{remark}\n{indent}{command}"


def _link(page: Page, place: str) -> str:
    return posixpath.relpath(place, posixpath.dirname(page.file.src_uri) or ".")


def _original(file: File) -> Path | None:
    """The file in the repository that a page was made from."""
    if file.abs_src_path is not None:
        return Path(file.abs_src_path)
    return next((path for path in [(ROOT / file.src_uri).with_suffix(".ipynb")] if path.is_file()), None)


WHOLE = r'<span class="whole">\g<0></span>'
OPTION = re.compile(r"(?<![^ >])(?=[^ ]*-)[^ <>]{2,24}(?![^ <])")  # --help, or test-fast
INTERVAL = re.compile(r"\[[-+−]?[\d.,]+(?:, [-+−]?[\d.,]+)?\]")
PICTURE = re.compile(r'<p>(<img alt="((?!Drawn by the code)[^"]+)" src="[^"]+"[^>]*>)</p>(?!\n<p><em>)')


def on_page_content(html: str, **_: Any) -> str:
    """Formulas as MathML, which browsers draw without a library; keys in tables may break after a dot, and the longest
    after an underscore, intervals nowhere; a picture's text is its caption, where no caption in italics follows."""
    html = PICTURE.sub(r"<figure>\1<figcaption>\2</figcaption></figure>", html)
    formula = re.compile(r'<(span|div) class="arithmatex">\\[([](.*?)\\[)\]]</\1>', re.S)

    def mathml(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        return latex2mathml.converter.convert(unescape(found[2]), display=display)

    html = re.sub(r"<table>.*?</table>", _fitted, html, flags=re.S)
    html = re.sub(r"<code>[^<\n]*</code>", lambda code: OPTION.sub(WHOLE, code[0]), html)
    return formula.sub(mathml, html)


def _fitted(table: re.Match[str]) -> str:
    wide = table[0].count("<th") > 6
    key = re.compile(rf"(<code>|<th[^>]*>)([^<\s]{{{11 if wide else 20},}})(?=</)")

    def breakable(found: re.Match[str]) -> str:
        return found[1] + re.sub(r"([./,=_(])" if wide or len(found[2]) >= 30 else r"([./,=])", r"\1<wbr>", found[2])

    return INTERVAL.sub(WHOLE, key.sub(breakable, table[0]))


def on_post_page(output: str, *, page: Page, **_: Any) -> str:
    """The script with which search works from the file system comes from the site itself."""
    return output.replace("https://unpkg.com/iframe-worker/shim", _link(page, "javascripts/iframe-worker.js"))
