// One line of JSON for each feature of a client, for the runner.
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

export const URL_ = process.env.ESCLUSA_URL, KEY = process.env.ESCLUSA_KEY;
export const CHAT = process.env.ESCLUSA_CHAT_MODEL, EMBEDDING = process.env.ESCLUSA_EMBEDDING_MODEL;
export const BASE = `${URL_}/v1`;

export function need(value, what = "nothing came") {
  if (!value) throw new Error(what);
}

export async function run(client, name, features) {
  const file = join(dirname(fileURLToPath(import.meta.url)), "node_modules", name, "package.json");
  const version = JSON.parse(readFileSync(file, "utf8")).version;
  for (const [feature, action] of Object.entries(features)) {
    let ok = true, note = "";
    try {
      await action();
    } catch (error) {
      ok = false;
      note = `${error?.name}: ${error?.message}`.slice(0, 600);
    }
    console.log(JSON.stringify({ client, version, feature, ok, note }));
  }
}
