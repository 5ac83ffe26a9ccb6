// A field that hides the rows of a page's tables that lack its words, on pages with many rows.
for (const content of document.querySelectorAll(".md-content__inner")) {
  const tables = [...content.querySelectorAll("table")].filter((table) => table.tBodies[0]);
  const rows = tables.flatMap((table) => [...table.tBodies[0].rows]);
  if (rows.length < 60) continue;
  const longest = tables.reduce((a, b) => (b.rows.length > a.rows.length ? b : a));
  const sections = tables.filter((table) => table.rows[0].textContent === longest.rows[0].textContent);
  const field = document.createElement("input");
  field.type = "search";
  field.className = "filter";
  field.placeholder = `filter the ${rows.length} rows of this page's tables`;
  field.setAttribute("aria-label", field.placeholder);
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    for (const table of tables) {
      const empty = [...table.tBodies[0].rows].every((row) => row.hidden);
      const box = table.closest(".md-typeset__scrollwrap") || table, title = box.previousElementSibling;
      box.hidden = empty;
      if (title && /^H[2-4]$/.test(title.tagName)) title.hidden = empty;
    }
  });
  (sections[0].closest(".md-typeset__scrollwrap") || sections[0]).before(field);
}
