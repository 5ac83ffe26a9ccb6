"""Draws the mermaid diagrams of docs/ as SVG: `make diagrams`, after one has changed. Needs npm and Chromium.

A picture is named by what it was drawn from (see hooks.py); pictures of diagrams that are gone are removed.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parents[1]
PICTURES = DOCS / "figures" / "diagrams"
PACKAGE = "mermaid@11.12.0"
PAGE = """<body><script src="package/dist/mermaid.min.js"></script><script>
const plain = {{htmlLabels: false}};
mermaid.initialize({{startOnLoad: false, ...plain, flowchart: plain, fontFamily: "sans-serif"}});
mermaid.render("diagram", {diagram!r}).then(({{svg}}) => document.body.innerHTML = svg);
</script></body>"""


def main(chromium: str) -> None:
    pages = sorted(DOCS.rglob("*.md"))
    diagrams = [
        block for page in pages for block in re.findall(r"^```mermaid\n(.*?)^```", page.read_text(), re.M | re.S)
    ]
    wanted = {PICTURES / f"{hashlib.sha256(diagram.encode()).hexdigest()[:12]}.svg": diagram for diagram in diagrams}
    for old in set(PICTURES.glob("*.svg")) - wanted.keys():
        old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True)
        subprocess.run(["tar", "-xzf", next(Path(folder).glob("*.tgz"))], cwd=folder, check=True)
        for picture, diagram in wanted.items():
            page = Path(folder) / "page.html"
            page.write_text(PAGE.format(diagram=diagram))
            command = [
                chromium,
                "--headless",
                "--no-sandbox",
                "--virtual-time-budget=20000",
                "--dump-dom",
                page.as_uri(),
            ]
            shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            svg = re.search(r"<svg.*</svg>", shown, re.S)
            if svg is None:
                sys.exit(f"mermaid drew nothing for {picture.name}: {shown[:500]}")
            picture.write_text(svg[0].replace("<br>", "<br/>") + "\n")
            print(picture)


if __name__ == "__main__":
    main(sys.argv[1])
