// Bundles the viewer into one script for src/luminal/view/built, with the licences of what is in it; --test: the tests.
import { build } from "esbuild";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";

const common = { bundle: true, minify: true, target: "es2022", legalComments: "none", logLevel: "warning" };

if (process.argv.includes("--test")) {
  const tests = readdirSync("tests").filter((name) => name.endsWith(".test.ts"));
  const entryPoints = tests.map((name) => `tests/${name}`);
  await build({ ...common, minify: false, entryPoints, outdir: "build/tests", platform: "node", format: "esm",
                outExtension: { ".js": ".mjs" } });
} else {
  const worker = await build({ ...common, entryPoints: ["src/worker.ts"], write: false, format: "iife" });
  const define = { WORKER_TEXT: JSON.stringify(worker.outputFiles[0].text) };
  const folder = "../src/luminal/view/built";
  mkdirSync(folder, { recursive: true });
  const found = await build({ ...common, entryPoints: ["src/main.ts"], write: false, format: "iife", define });
  // A script of a page ends at the first "</script".
  writeFileSync(`${folder}/viewer.js`, found.outputFiles[0].text.replaceAll("</script", "<\\/script"));
  const lock = JSON.parse(readFileSync("package-lock.json", "utf8")).packages;
  const parts = Object.entries(lock).filter(([path, row]) => path && !row.dev);
  const texts = parts.map(([path, row]) => {
    const file = readdirSync(path).find((name) => /^licen[cs]e/i.test(name));
    if (!file) throw new Error(`${path} has no licence file`);
    return `${path.replace("node_modules/", "")} ${row.version}\n\n${readFileSync(`${path}/${file}`, "utf8").trim()}\n`;
  });
  writeFileSync(`${folder}/LICENCES.txt`, texts.join(`\n${"-".repeat(80)}\n\n`));
}
