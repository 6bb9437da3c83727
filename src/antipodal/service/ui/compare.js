// Comparison of two searches: other mounts, reranking, or code prefixes of a Hamming model.

import { request, otherMounts, Problem } from "./api.js";
import { $, count, el } from "./dom.js";
import { nameOf, pictureOf, readable } from "./items.js";
import { measure } from "./results.js";
import { go, state } from "./state.js";

const NEIGHBOURS = 12;
let alternatives = null; // keyed by their name in the URL: {label, base, options, n_bits}
let shownFor = "";

/** Return all alternatives: the whole code, mounts of like items, reranking, and code prefixes. */
export async function findAlternatives(model) {
  if (alternatives) return alternatives;
  const found = new Map([["", { label: `all ${count(model.n_bits, "bit")}`, base: "", n_bits: model.n_bits }]]);
  for (const { name, base, method, n_bits, n_features, id_type } of await otherMounts()) {
    if (n_features !== model.n_features || id_type !== model.id_type) continue; // of other items
    found.set(name, { label: `${name}: ${method}, ${count(n_bits, "bit")}`, base, n_bits });
  }
  if (model.keep_vectors) found.set("reranked", { label: "reranked by the kept vectors", base: "", options: { rerank: 4 }, n_bits: model.n_bits });
  alternatives = found;
  if (model.scoring !== "hamming") return found;
  for (let bits = model.n_bits <= 64 ? 8 * Math.floor((model.n_bits - 1) / 8) : model.n_bits / 2; bits >= 4; bits = model.n_bits <= 64 ? bits - 8 : Math.floor(bits / 2)) {
    found.set(`first-${bits}`, { label: `the first ${bits} bits`, base: "", options: { prefix: bits }, n_bits: bits });
  }
  return found;
}

async function sideOf(alternative, body, where) {
  const query = { ...body, k: NEIGHBOURS, histogram: !alternative.options?.rerank, ...alternative.options };
  if (where) query.where = where;
  if (alternative.base && body.code) {
    throw new Problem("Codes of different models cannot be compared. Search by an item or a vector instead.");
  }
  try {
    return await request("v1/search", query, { base: alternative.base });
  } catch (error) {
    if (!/histogram/.test(error.message)) throw error;
    return request("v1/search", { ...query, histogram: false }, { base: alternative.base });
  }
}

const place = (n) => `${n}${n % 100 > 10 && n % 100 < 14 ? "th" : ["th", "st", "nd", "rd"][n % 10] ?? "th"}`;

function drawSide(node, alternative, answer, other, label, pick) {
  const there = new Map(other.results.map(({ id }, i) => [id, i + 1]));
  const { results, histogram } = answer;
  const notes = [];
  if (readable(label)) notes.push(`${results.filter((item) => item.metadata?.label === label).length} of ${results.length} have label ${label}.`);
  const last = results.at(-1)?.distance, tied = histogram?.[last];
  if (tied > 1) notes.push(`${count(tied)} are tied at distance ${last}, ordered by id.`);
  node.replaceChildren(
    el("p", { class: "said" }, notes.join(" ")),
    el("ol", {}, ...results.map((item) => {
      const at = there.get(item.id), image = pictureOf(item);
      return el("li", { class: at ? "both" : "alone" }, el("button", {
        type: "button", class: "item", title: `Search by item ${item.id}`, onclick: () => pick(item),
      }, ...(image ? [image] : []), el("span", { class: "words" }, el("b", {}, nameOf(item)),
        el("small", {}, `#${item.id} · ${measure(item, alternative.n_bits)}`),
        el("small", { class: "mark" }, at ? `● in both, ${place(at)} in the other` : "○ only here"))));
    })),
  );
}

export async function drawCompare({ model, query, item, where, pick, isStale }) {
  await findAlternatives(model);
  const names = [...alternatives.keys()];
  const usual = names.find((name) => name && !alternatives.get(name).options?.prefix)
    ?? names.find((name) => alternatives.get(name).n_bits <= model.n_bits / 2) ?? names.at(-1);
  const chosen = { a: alternatives.has(state.a) ? state.a : "", b: alternatives.has(state.b) && state.b ? state.b : usual };
  for (const side of ["a", "b"]) {
    $(`way-${side}`).replaceChildren(...names.map((name) => el("option", { value: name, selected: name === chosen[side] }, alternatives.get(name).label)));
  }
  const key = JSON.stringify([query, chosen, where]);
  if (key === shownFor) return;
  const [a, b] = [alternatives.get(chosen.a), alternatives.get(chosen.b)];
  const [left, right] = await Promise.all([sideOf(a, query, where), sideOf(b, query, where)]);
  if (isStale()) return;
  const shared = left.results.filter(({ id }) => right.results.some((other) => other.id === id)).length;
  $("shared").textContent = `${shared} of ${Math.max(left.results.length, right.results.length)} neighbours of ${nameOf(item)} are shared`;
  drawSide($("side-a"), a, left, right, item.metadata?.label, pick);
  drawSide($("side-b"), b, right, left, item.metadata?.label, pick);
  shownFor = key;
}

for (const side of ["a", "b"]) $(`way-${side}`).addEventListener("change", (event) => go({ [side]: event.target.value }));
