// Draws openapi.json: routes with their requests and responses, as text only, and sends requests.

import { $, el } from "./dom.js";

const LONGEST = 20_000; // characters of a response
const WRITES = ["put", "delete"];
const KEY = `antipodal-key ${new URL(".", location.href).pathname}`; // as in api.js
let described;
let known = {}; // of the collection, for examples that work: {width, id, unused}

/** Resolve a reference within the document. */
function resolve(schema) {
  if (!schema?.$ref) return schema ?? {};
  return schema.$ref.slice(2).split("/").reduce((part, name) => part[name], described);
}

/** Return a short name of the type of a schema. */
function kind(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  const either = schema.anyOf ?? schema.oneOf;
  if (either) return either.map(kind).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.type === "array") return `list of ${kind(schema.items ?? {})}`;
  return schema.type ?? "anything";
}

/** Return the description of a schema, or of its first described alternative. */
function words(schema) {
  return schema.description ?? schema.anyOf?.map(words).find(Boolean) ?? "";
}

/** List the fields of a schema and of the schemas it refers to, each once. */
function fields(schema, seen = new Set()) {
  const list = [];
  for (const part of schema.anyOf ?? schema.oneOf ?? [schema]) {
    const whole = resolve(part);
    const name = part.$ref ?? JSON.stringify(part);
    if (seen.has(name)) continue;
    seen.add(name);
    if (whole.type === "array") list.push(...fields(whole.items ?? {}, seen));
    if (!whole.properties) continue;
    const rows = Object.entries(whole.properties).map(([field, of]) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, el("code", {}, field)),
        el("td", {}, kind(of), whole.required?.includes(field) ? "" : " (optional)"),
        el("td", {}, words(of)),
      ),
    );
    const title = el("caption", {}, whole.title ?? "");
    list.push(el("div", { class: "wide" }, el("table", {}, title, el("tbody", {}, ...rows))));
    for (const of of Object.values(whole.properties)) list.push(...fields(of, seen));
  }
  return list;
}

function example(schema) {
  const [first] = resolve(schema).examples ?? [];
  return first ? [el("pre", {}, el("code", {}, JSON.stringify(first, null, 1)))] : [];
}

function bodies(title, content) {
  return Object.entries(content ?? {}).flatMap(([type, { schema }]) => [
    el("h3", {}, `${title}, ${type}`),
    ...example(schema),
    ...fields(schema ?? {}),
  ]);
}

/** Return an example of a body with vectors of the right width, and with ids of this collection. */
function exampleOf(operation, method) {
  const [given] = resolve(operation.requestBody?.content["application/json"]?.schema).examples ?? [];
  if (!given || !known.width) return given;
  const id = WRITES.includes(method) ? known.unused : known.id;
  const vector = Array.from({ length: known.width }, (_, i) => Math.round(100 * Math.sin(i + 1)) / 100);
  const change = (name, value) => {
    if (name === "vector") return vector;
    if (name === "vectors") return value.map((_, i) => [...vector.slice(i), ...vector.slice(0, i)]);
    if (name === "id") return id;
    return name === "ids" ? [id] : value;
  };
  if (given.k && id !== undefined) return { id, k: given.k };
  return JSON.parse(JSON.stringify(given, change));
}

const authorization = () => ($("key").value.trim() ? { Authorization: `Bearer ${$("key").value.trim()}` } : {});

/** Return the curl command of a request, and a form that sends it. */
function trial(path, method, operation) {
  const inputs = (operation.parameters ?? []).filter(({ name }) => name !== "options").map(({ name, in: place, schema }) => {
    const value = place === "path" ? `${known.id ?? 7}` : "";
    return { name, place, node: el("input", { value, placeholder: schema.default ?? "", autocomplete: "off" }) };
  });
  const given = exampleOf(operation, method);
  const text = JSON.stringify(given, null, 1)?.replace(/\[[^[\]{}]*\]/g, (list) => list.replace(/\s+/g, " "));
  const body = given && el("textarea", { rows: Math.min(12, text.split("\n").length), spellcheck: "false" });
  if (body) body.value = text;
  const line = el("code"), answer = el("pre", { hidden: true, tabindex: "0" });

  function address() {
    const url = new URL(path.slice(1).replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(inputs.find((one) => one.name === name).node.value)), new URL(".", location.href));
    for (const { name, place, node } of inputs) if (place === "query" && node.value) url.searchParams.set(name, node.value);
    return url.href;
  }

  /** Return the body on one line if it is JSON. */
  function sent() {
    try {
      return JSON.stringify(JSON.parse(body.value));
    } catch {
      return body.value;
    }
  }

  function drawLine() {
    const quoted = (value) => `'${value.replaceAll("'", "'\\''")}'`;
    const words = ["curl", ...(method === "get" ? [] : ["-X", method.toUpperCase()]), quoted(address())];
    if (operation.security) words.push("\\\n  -H \"Authorization: Bearer $KEY\"");
    if (body) words.push(`\\\n  -H 'Content-Type: application/json' \\\n  -d ${quoted(sent())}`);
    line.textContent = words.join(" ");
  }

  async function send(event) {
    event.preventDefault();
    answer.hidden = false;
    answer.textContent = "Sending…";
    const start = performance.now();
    try {
      const headers = { ...(operation.security && authorization()), ...(body && { "Content-Type": "application/json" }) };
      const response = await fetch(address(), { method: method.toUpperCase(), headers, body: body?.value });
      let shown = await response.text();
      const time = `${Math.round(performance.now() - start)} ms`;
      if (/json/.test(response.headers.get("Content-Type"))) shown = JSON.stringify(JSON.parse(shown), null, 1);
      if (shown.length > LONGEST) shown = `${shown.slice(0, LONGEST)}\n… ${shown.length - LONGEST} more characters`;
      answer.textContent = `${response.status} ${response.statusText}, ${time}\n${shown}`;
    } catch {
      answer.textContent = "The service does not respond. Is it running?";
    }
  }

  drawLine();
  return [el("pre", {}, line), el("details", { class: "trial" }, el("summary", {}, "Try it"), el("form", { oninput: drawLine, onsubmit: send },
    ...inputs.map(({ name, node }) => el("label", {}, `${name} `, node)),
    ...(body ? [el("label", {}, "Body ", body)] : []),
    el("button", {}, WRITES.includes(method) ? "Send: this changes the collection" : "Send")), answer)];
}

function route(path, method, operation) {
  const name = `${method.toUpperCase()} ${path}`;
  const id = name.replace(/\W+/g, "-");
  $("contents").append(el("a", { href: `#${id}` }, name));
  const section = el("section", { id }, el("h2", {}, el("code", {}, name)));
  section.append(el("p", {}, operation.description ?? operation.summary ?? ""));
  if (operation.security) section.append(el("p", { class: "quiet" }, "Requires an API key if the service has keys."));
  const parameters = (operation.parameters ?? []).map((one) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, el("code", {}, one.name)),
      el("td", {}, `${kind(one.schema)}, in the ${one.in}`),
      el("td", {}, one.description ?? ""),
    ),
  );
  if (parameters.length) section.append(el("table", {}, el("tbody", {}, ...parameters)));
  section.append(...trial(path, method, operation));
  section.append(...bodies("Request", operation.requestBody?.content));
  for (const [status, answer] of Object.entries(operation.responses)) {
    if (status === "200") section.append(...bodies("Response", answer.content));
  }
  const refusals = Object.keys(operation.responses).filter((status) => status !== "200");
  if (refusals.length) section.append(el("p", { class: "quiet" }, `Errors: ${refusals.join(", ")}.`));
  $("routes").append(section);
}

/** Find out the width of the vectors and an id. Without a valid key, examples are those of the API. */
async function learn() {
  const get = async (path) => {
    const response = await fetch(path, { headers: authorization() });
    return response.ok ? response.json() : {};
  };
  known = {};
  if (!described.paths["/v1/model"]) {
    known = await get("v1/mounts");
    return;
  }
  const [model, { items: [item] = [] }] = await Promise.all([get("v1/model"), get("v1/items?limit=1")]);
  known = { width: model.n_features, id: item?.id, unused: model.id_type === "string" ? "example" : 9_000_000_001 };
}

async function draw() {
  await learn().catch(() => {});
  $("contents").replaceChildren(...(known.mounts ?? []).map(({ name }) => el("a", { href: `${name}/docs` }, `/${name}/…`)));
  $("routes").replaceChildren();
  for (const [path, methods] of Object.entries(described.paths)) {
    for (const [method, operation] of Object.entries(methods)) route(path, method, operation);
  }
}

$("key").value = sessionStorage.getItem(KEY) ?? sessionStorage.getItem("antipodal-key") ?? "";
$("key").addEventListener("change", () => {
  sessionStorage.setItem(KEY, $("key").value.trim());
  draw();
});
try {
  described = await (await fetch("openapi.json")).json();
  $("about").replaceChildren(
    `antipodal ${described.info.version}. ${described.info.description} `,
    "Machine-readable: ",
    el("a", { href: "openapi.json" }, "openapi.json"),
    ".",
  );
  await draw();
  if (location.hash) document.querySelector(location.hash)?.scrollIntoView();
} catch {
  $("about").replaceChildren("The service does not respond. Is it running? ", el("button", { onclick: () => location.reload() }, "Try again"));
}
