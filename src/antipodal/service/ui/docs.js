// Draws openapi.json: routes with their requests and responses, as text only.

const $ = (id) => document.getElementById(id);

function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

let described;

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

/** Return a curl command for a route, with the example of its body. */
function curl(path, method, operation) {
  const at = new URL(path.slice(1).replace("{id}", "7"), new URL(".", location.href)).href;
  const [body] = resolve(operation.requestBody?.content["application/json"]?.schema).examples ?? [];
  const words = ["curl", ...(method === "get" ? [] : ["-X", method.toUpperCase()]), `'${at}'`];
  if (operation.security) words.push("\\\n  -H \"Authorization: Bearer $KEY\"");
  if (body) words.push(`\\\n  -H 'Content-Type: application/json' \\\n  -d '${JSON.stringify(body)}'`);
  return el("pre", {}, el("code", {}, words.join(" ")));
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
  section.append(curl(path, method, operation));
  section.append(...bodies("Request", operation.requestBody?.content));
  for (const [status, answer] of Object.entries(operation.responses)) {
    if (status === "200") section.append(...bodies("Response", answer.content));
  }
  const refusals = Object.keys(operation.responses).filter((status) => status !== "200");
  if (refusals.length) section.append(el("p", { class: "quiet" }, `Errors: ${refusals.join(", ")}.`));
  $("routes").append(section);
}

try {
  described = await (await fetch("openapi.json")).json();
  $("about").replaceChildren(
    `antipodal ${described.info.version}. ${described.info.description} `,
    "Machine-readable: ",
    el("a", { href: "openapi.json" }, "openapi.json"),
    ".",
  );
  for (const [path, methods] of Object.entries(described.paths)) {
    for (const [method, operation] of Object.entries(methods)) route(path, method, operation);
  }
  if (location.hash) document.querySelector(location.hash)?.scrollIntoView();
} catch {
  $("about").textContent = "The service does not respond. Is it running?";
}
