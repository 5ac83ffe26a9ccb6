"""Opens every page of the built site in headless Chromium, from the file system: `make check-site`.

A page fails if an image is broken or has no alternative text, if it asks for anything over the network, if a script
fails, or if at 400 pixels it is wider than the screen. Search must find a word of a page.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

IMAGES = """() => [...document.images]
    .filter(image => !image.complete || !image.naturalWidth || !image.alt.trim())
    .map(image => image.src + " alt=" + image.alt)"""
WIDTH = "() => document.documentElement.scrollWidth"


def main(site: Path, pictures: Path | None) -> None:
    faults: list[str] = []
    pages = sorted(path for path in site.rglob("*.html") if "report.html" not in path.name and path.name != "404.html")
    with sync_playwright() as playwright:
        found = shutil.which("chromium") or shutil.which("google-chrome") or playwright.chromium.executable_path
        if not Path(found).is_file():
            sys.exit(
                "there is no Chromium: apt-get install chromium (Debian), or .venv-docs/bin/playwright install chromium"
            )
        browser = playwright.chromium.launch(executable_path=found)
        page = browser.new_page(viewport={"width": 400, "height": 800})
        page.set_default_timeout(180_000)  # a busy machine is not a fault of a page
        page.on("request", lambda request: request.url.startswith("http") and faults.append(f"asks for {request.url}"))
        page.on("pageerror", lambda error: faults.append(f"script: {error}"))
        for path in pages:
            start = len(faults)
            faults += _look(page, path)
            faults[start:] = [f"{path.relative_to(site)}: {fault}" for fault in faults[start:]]
            if pictures:
                _photograph(page, pictures, path.relative_to(site))
        faults += _search(page, site)
        browser.close()
    print("\n".join(faults) or f"{len(pages)} pages: every image is there with its text, none is wider than 400 pixels")
    sys.exit(bool(faults))


def _look(page: Page, path: Path) -> list[str]:
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(path.as_uri())
    page.evaluate("() => document.querySelectorAll('img').forEach(image => image.loading = 'eager')")
    page.wait_for_function("() => [...document.images].every(image => image.complete)")
    width = page.evaluate(WIDTH)
    return [f"image {image}" for image in page.evaluate(IMAGES)] + ([f"{width} pixels wide"] if width > 400 else [])


def _photograph(page: Page, folder: Path, name: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    plain = "_".join(name.with_suffix("").parts)
    page.screenshot(path=folder / f"{plain}-400.png")
    page.set_viewport_size({"width": 1280, "height": 900})
    page.screenshot(path=folder / f"{plain}-1280.png")


def _search(page: Page, site: Path) -> list[str]:
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto((site / "index.html").as_uri())
    try:
        page.keyboard.press("/")
        page.wait_for_selector("input[name=query]")
        page.keyboard.type("dynamic sampling")
        page.wait_for_selector(".md-search-result__link")
    except Exception as error:
        return [f"search finds nothing: {error}"]
    return []


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
