// Display of items: their picture, title and text.

import { request } from "./api.js";
import { cut, el } from "./dom.js";

const PICTURE = /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$/;
const TITLES = ["title", "name", "headline", "subject"];
const TEXTS = ["text", "abstract", "body", "content", "summary", "description", "caption", "sentence", "question"];
const LONGEST_TITLE = 60; // characters of an id that serves as a title
const LONG = 30; // mean characters of a text field

/** The roles of the metadata fields, inferred from a sample by the service. */
export const store = { fields: [], title: "", text: "", hasPictures: false, sample: 0, idType: "int64" };

const known = new Map(); // items received so far, by id

export async function learnFields() {
  const { fields, sample } = await request("v1/fields");
  const strings = fields.filter(({ kind }) => kind === "string");
  const named = (names) => names.find((name) => fields.some((field) => field.name === name && ["string", "number", "mixed"].includes(field.kind)));
  const longest = strings.filter(({ length }) => length >= LONG).sort((a, b) => b.length - a.length)[0];
  const text = named(TEXTS) ?? longest?.name ?? "";
  const pictures = fields.find(({ name, kind }) => name === "thumbnail" && kind === "picture");
  Object.assign(store, {
    fields, sample, text, title: named(TITLES.filter((name) => name !== text)) ?? "",
    hasPictures: Boolean(pictures) && pictures.items * 2 >= sample,
  });
}

/** Return the fields shown by default: the label and a few short ones. */
export function usualFields() {
  const short = store.fields.filter(({ name, kind, length }) => ["number", "string", "boolean"].includes(kind)
    && ![store.title, store.text].includes(name) && !(length > LONG));
  const label = short.filter(({ name }) => name === "label");
  return [...label, ...short.filter(({ name }) => name !== "label")].slice(0, 4).map(({ name }) => name);
}

export function valueOf(item, field) {
  if (!field) return undefined;
  let value = item.metadata ?? {};
  if (Object.hasOwn(value, field)) return value[field];
  for (const name of field.split(".")) value = value !== null && typeof value === "object" ? value[name] : undefined;
  return value;
}

export function readable(value) {
  return ["string", "number"].includes(typeof value) && value !== "" ? `${value}` : "";
}

/** Return the name of an item: title and label, the start of its text, or its id. */
export function nameOf(item) {
  if (item.name !== undefined) return item.name;
  const title = titleOf(item), label = readable(item.metadata?.label);
  if (title || label) return [title, label].filter(Boolean).join(" · ");
  return cut(readable(valueOf(item, store.text)), 80) || `item ${item.id}`;
}

/** Return the title of an item: a field, or a short string id. */
export function titleOf(item) {
  const id = typeof item.id === "string" && item.id.length <= LONGEST_TITLE && !item.id.includes("://") ? item.id : "";
  return readable(valueOf(item, store.title || "title")) || (store.text && id);
}

export function textOf(item) {
  return readable(valueOf(item, store.text));
}

export function pictureOf(item) {
  const source = item.metadata?.thumbnail;
  return typeof source === "string" && PICTURE.test(source) ? el("img", { class: "pic", src: source, alt: "" }) : null;
}

/** Return the picture of an item, or its id. */
export function face(item) {
  return pictureOf(item) ?? el("span", { class: "pic", "aria-hidden": "true" }, item.id === undefined ? "?" : `${item.id}`);
}

export function remember(items) {
  for (const item of items) {
    known.set(`${item.id}`, item);
    if (known.size > 5000) known.delete(known.keys().next().value);
  }
  return items;
}

/** Return an item by its id in the URL, or null. */
export async function itemOf(id) {
  if (known.has(id)) return known.get(id);
  let items = [];
  if (store.idType === "string") ({ items } = await request("v1/items/get", { ids: [id] })); // any string: no path
  else if (/^-?\d+$/.test(id)) {
    items = await request(`v1/items/${id}`).then((item) => [item], (error) => { // exact beyond 2⁵³
      if (error.status !== 404 && error.status !== 422) throw error;
      return [];
    });
  }
  return remember(items)[0] ?? null;
}

/** Integer ids beyond 2⁵³ are not exact in JavaScript. */
export const isExact = (id) => typeof id === "string" || Number.isSafeInteger(id);
