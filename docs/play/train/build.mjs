// Builds docs/play/train.html: one file that asks no server for anything. `make tab` runs it where the packages of
// package-lock.json are installed; the base policy and the training problems come from `data.json`, which
// `python docs/play/train/data.py` writes.

import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const read = (name) => readFileSync(join(here, name), "utf8");
const out = process.argv[2];

const bundled = async (name) => {
  const { outputFiles } = await build({
    entryPoints: [join(here, name)], bundle: true, write: false, minify: true, format: "iife", target: "es2022",
    legalComments: "none", charset: "utf8", nodePaths: process.env.NODE_PATH?.split(":"), logLevel: "warning",
  });
  return outputFiles[0].text.replaceAll("</script", "<\\/script").trim();
};

const { weights, ...data } = JSON.parse(read("data.json"));
const page = await bundled("page.js");
const parts = {
  css: read("page.css").trim(),
  data: JSON.stringify(data).replaceAll("<", "\\u003c"),
  weights,
  worker: await bundled("worker.js"),
  page,
  parameters: Math.round(data.parameters / 1000) + ",000",
  hash: "sha256-" + createHash("sha256").update(page).digest("base64"),
};
const html = read("page.html").replace(/\{\{ (\w+) \}\}/g, (_, name) => parts[name]);
writeFileSync(out, html);
console.log(`${out}: ${(html.length / 1e6).toFixed(2)} MB`);
