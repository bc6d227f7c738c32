// Writes untyped.d.ts: the members of the namespace that some script sets and no declaration has, as `any`. So a new
// script's members are known at once, and one that nobody sets stays an error. Run by `npm run declare`.
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { ASSETS, SCRIPTS } from "./page.mjs";

const HEAD = `// Members of the namespace that are not typed yet, by the script that sets them; written by \`npm run declare\`. To type
// one, declare it in nanscope.d.ts, or in a file of its own beside it, and run that again.
`;
const here = new URL("./", import.meta.url);
const read = (name) => readFileSync(new URL(name, here), "utf8");

// Member -> the first script that sets it.
export function setMembers() {
  const found = new Map();
  for (const script of SCRIPTS) {
    const text = readFileSync(new URL(script, ASSETS), "utf8").replace(/\/\/.*$/gm, "");
    for (const [, name] of text.matchAll(/\bns\.(\w+) = /g)) if (!found.has(name)) found.set(name, script);
  }
  return found;
}

// What `interface Nanscope` has in all files but the one that is written.
export function typedMembers() {
  const files = readdirSync(here).filter((name) => name.endsWith(".d.ts") && name !== "untyped.d.ts");
  const bodies = files.flatMap((name) => [...read(name).matchAll(/^interface Nanscope \{$(.*?)^\}$/gms)].map(([, body]) => body));
  return new Set(bodies.flatMap((body) => [...body.matchAll(/^  (\w+)\??[:(<]/gm)].map(([, name]) => name)));
}

export function untyped() {
  const typed = typedMembers();
  const scripts = new Map();
  for (const [name, script] of setMembers()) if (!typed.has(name)) scripts.set(script, [...(scripts.get(script) ?? []), name]);
  const parts = [...scripts].map(([script, names]) => `  // ${script}\n${names.map((name) => `  ${name}: any;\n`).join("")}`);
  return `${HEAD}\ninterface Nanscope {\n${parts.join("")}}\n`;
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) writeFileSync(new URL("untyped.d.ts", here), untyped());
