// The filter: rows of field, relation and value, kept in sync with its JSON.

import { $, el } from "./dom.js";
import { store } from "./items.js";
import { go, state } from "./state.js";

const RELATIONS = {
  is: "is", not: "is not", in: "is one of", gte: "at least", lte: "at most", gt: "more than", lt: "less than",
  exists: "exists", missing: "does not exist",
};
const WITHOUT_VALUE = ["exists", "missing"];

class Wrong extends Error {}

const kindOf = (name) => store.fields.find((field) => field.name === name)?.kind;

/** Convert typed text to the type of the field. */
function parsed(text, kind) {
  const plain = text.trim();
  if (kind === "number") {
    if (plain === "" || !Number.isFinite(Number(plain))) throw new Wrong(`Expected a number, got “${plain}”.`);
    return Number(plain);
  }
  if (kind === "boolean") {
    if (!["true", "false"].includes(plain)) throw new Wrong("Expected true or false.");
    return plain === "true";
  }
  if (kind === "string") return text;
  try { // mixed types: JSON, or else text
    const value = JSON.parse(plain);
    if (value === null || typeof value !== "object") return value;
  } catch { /* text */ }
  return text;
}

function condition({ name, relation, value }) {
  const kind = kindOf(name);
  if (relation === "exists") return { [name]: { exists: true } };
  if (relation === "missing") return { [name]: { exists: false } };
  if (relation === "in") {
    const values = value.split(",").filter((part) => part.trim()).map((part) => parsed(part.trim(), kind));
    if (!values.length) throw new Wrong("Expected values separated by commas.");
    return { [name]: { in: values } };
  }
  if (value.trim() === "") throw new Wrong("Expected a value.");
  const one = parsed(value, kind);
  if (relation === "is") return { [name]: one };
  return relation === "not" ? { not: { [name]: one } } : { [name]: { [relation]: one } };
}

/** Combine rows into one filter; an "and" if a field occurs several times. */
function joined(conditions) {
  const names = conditions.map((one) => Object.keys(one)[0]);
  return new Set(names).size === names.length ? Object.assign({}, ...conditions) : { and: conditions };
}

/** Return the rows of a filter, or null if rows cannot express it. */
function rowsOf(where) {
  const parts = Array.isArray(where.and) && Object.keys(where).length === 1 ? where.and : [where];
  const rows = [];
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  for (const part of parts) {
    for (const [name, value] of Object.entries(part)) {
      if (name === "not" && Object.keys(value).length === 1) {
        const [[inner, one]] = Object.entries(value);
        if (["and", "or", "not"].includes(inner) || (one !== null && typeof one === "object")) return null;
        rows.push({ name: inner, relation: "not", value: text(one) });
      } else if (["and", "or", "not"].includes(name) || Array.isArray(value)) return null;
      else if (value === null || typeof value !== "object") rows.push({ name, relation: "is", value: text(value) });
      else {
        for (const [relation, bound] of Object.entries(value)) {
          if (relation === "exists") rows.push({ name, relation: bound === false ? "missing" : "exists", value: "" });
          else if (relation === "in" && Array.isArray(bound)) rows.push({ name, relation, value: bound.map(text).join(", ") });
          else if (relation in RELATIONS && (bound === null || typeof bound !== "object")) rows.push({ name, relation, value: text(bound) });
          else return null;
        }
      }
    }
  }
  return rows;
}

/** Parse a filter, or throw an error. */
export function readWhere(text) {
  if (!text.trim()) return null;
  let where;
  try {
    where = JSON.parse(text);
  } catch {
    throw new Wrong("The filter is not valid: it must be JSON, such as {\"label\": 3}.");
  }
  if (where === null || typeof where !== "object" || Array.isArray(where)) {
    throw new Wrong("The filter is not valid: it must be an object, such as {\"label\": 3}.");
  }
  return where;
}

/** Show an error at the row of its field, or else at the JSON. */
export function showFilterError(message) {
  for (const node of $("rows").querySelectorAll(".row-wrong")) node.textContent = "";
  for (const node of $("filter").querySelectorAll("[aria-invalid]")) node.setAttribute("aria-invalid", "false");
  $("where-wrong").textContent = "";
  if (!message) return;
  $("filter").open = true;
  const row = [...$("rows").children].find((node) => node.dataset.name && message.includes(`"${node.dataset.name}"`));
  if (row) return sayAtRow(row, message);
  $("raw").open = true;
  $("where-wrong").textContent = message;
  $("where").setAttribute("aria-invalid", "true");
}

function sayAtRow(row, message) {
  row.querySelector(".row-wrong").textContent = message;
  row.querySelector("input")?.setAttribute("aria-invalid", "true");
}

let rowNumber = 0;

function drawRow({ name, relation, value }) {
  rowNumber += 1;
  const names = store.fields.filter(({ kind }) => !["picture"].includes(kind)).map((field) => field.name);
  if (name && !names.includes(name)) names.unshift(name);
  const values = store.fields.find((field) => field.name === name)?.values ?? [];
  const wrong = `row-wrong-${rowNumber}`, list = `values-${rowNumber}`;
  const option = (text, label, chosen) => el("option", { value: text, selected: text === chosen }, label);
  const field = store.fields.find((one) => one.name === name);
  const kind = field?.kind === "container" ? "object or list" : field?.kind;
  const node = el("li", { "data-name": name },
    el("select", {
      "aria-label": "Field", onchange: (event) => {
        const fresh = drawRow({ name: event.target.value, relation: "is", value: "" });
        node.replaceWith(fresh);
        fresh.querySelector("input")?.focus();
      },
    }, ...names.map((one) => option(one, one, name))),
    el("select", {
      "aria-label": `Relation of ${name}`, onchange: (event) => {
        const input = node.querySelector("input");
        input.hidden = WITHOUT_VALUE.includes(event.target.value);
        if (input.hidden || input.value) applyRows();
      },
    }, ...Object.entries(RELATIONS).map(([one, label]) => option(one, label, relation))),
    el("input", {
      "aria-label": `Value of ${name}`, value, list, autocomplete: "off", spellcheck: "false", "aria-describedby": wrong,
      placeholder: field?.kind === "number" && field.least !== null ? `${field.least} to ${field.most}` : kind ?? "",
      hidden: WITHOUT_VALUE.includes(relation), onchange: applyRows,
    }),
    el("datalist", { id: list }, ...values.map((one) => el("option", { value: `${one.value}` }, `${one.items} of ${store.sample}`))),
    el("button", {
      type: "button", class: "quiet", "aria-label": `Remove the condition on ${name}`, onclick: () => {
        node.remove();
        applyRows();
      },
    }, "×"),
    el("p", { id: wrong, class: "row-wrong", "aria-live": "assertive" }));
  return node;
}

/** Apply the rows as filter, or show the errors of invalid rows. */
function applyRows() {
  showFilterError("");
  const conditions = [];
  let good = true;
  for (const node of $("rows").children) {
    const [name, relation, value] = [...node.querySelectorAll("select, input")].map((part) => part.value);
    try {
      conditions.push(condition({ name, relation, value }));
    } catch (error) {
      if (!(error instanceof Wrong)) throw error;
      sayAtRow(node, error.message);
      good = false;
    }
  }
  if (good) go({ where: conditions.length ? JSON.stringify(joined(conditions)) : "", page: 1 });
}

/** Draw the filter of the state, as rows and as JSON. */
export function drawFilter() {
  $("where").value = state.where;
  let rows = null;
  try {
    rows = rowsOf(readWhere(state.where) ?? {});
  } catch { /* invalid: the search shows the error */ }
  $("too-rich").hidden = rows !== null;
  $("add-row").hidden = rows === null || !store.fields.length;
  $("filter-on").textContent = state.where.trim() ? "on" : "";
  const drawn = [...$("rows").children].map((node) => [...node.querySelectorAll("select, input")].map((part) => part.value));
  const wanted = (rows ?? []).map(({ name, relation, value }) => [name, relation, value]);
  if (JSON.stringify(drawn) !== JSON.stringify(wanted)) $("rows").replaceChildren(...(rows ?? []).map(drawRow));
  if (state.where.trim()) $("filter").open = true;
}

$("add-row").addEventListener("click", () => {
  const [first] = store.fields.filter(({ name, kind }) => kind !== "picture" && name !== store.text);
  const node = drawRow({ name: first?.name ?? store.fields[0].name, relation: "is", value: "" });
  $("rows").append(node);
  node.querySelector("select").focus();
});
$("where").addEventListener("change", () => go({ where: $("where").value.trim(), page: 1 }));
