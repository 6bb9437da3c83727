// Search results: a grid of pictures or a list of texts, with ties and pages.

import { strip } from "./bits.js";
import { $, count, cut, el, number } from "./dom.js";
import { face, nameOf, pictureOf, readable, store, textOf, titleOf, usualFields, valueOf } from "./items.js";
import { go, state } from "./state.js";

export const MOST_NEAREST = 1000; // results available without a radius
export const RERANKED = 240; // results that are reranked, on every page
const MOST_BITS = 128; // of a code drawn with a result

export const layout = () => state.layout || (store.hasPictures ? "grid" : "list");

function fields(item) {
  const shown = (state.show ?? usualFields()).map((name) => [name, valueOf(item, name)])
    .filter(([, value]) => value !== undefined && value !== null);
  return shown.length ? [el("span", { class: "fields" }, ...shown.map(([name, value]) => el("span", {},
    el("i", {}, name), ` ${cut(typeof value === "object" ? JSON.stringify(value) : `${value}`, 60)}`)))] : [];
}

/** Return the score of a result, or its distance. */
export function measure(item, n) {
  if (typeof item.score === "number") return `score ${item.score.toFixed(3)}`;
  return n ? `${item.distance} of ${count(n, "bit")} differ` : `distance ${count(item.distance, "bit")}`;
}

function result(item, code, n, moved, pick) {
  const label = readable(item.metadata?.label), title = titleOf(item), text = textOf(item);
  const facts = [...(title === item.id ? [] : [`#${cut(`${item.id}`, 60)}`]), measure(item)];
  if (moved) facts.push(moved);
  const words = layout() === "list"
    ? [el("b", {}, title || cut(text, 240) || nameOf(item)), ...(title && text ? [el("span", { class: "text" }, cut(text, 300))] : [])]
    : [el("b", {}, cut([title, label].filter(Boolean).join(" · ") || cut(text, 60) || nameOf(item), 120))];
  const image = layout() === "grid" ? face(item) : pictureOf(item);
  return el("li", { class: "result", "data-id": item.id },
    el("div", {},
      el("button", {
        type: "button", class: "item", title: `Search by item ${item.id}`, onclick: () => pick(item),
      }, ...(image ? [image] : []), el("span", { class: "words" }, ...words)),
      ...(layout() === "list" ? fields(item) : [])),
    el("div", {},
      el("small", {}, facts.join(" · ")),
      ...(code && n <= MOST_BITS ? [strip(item.code, code, n)] : []),
      el("button", {
        type: "button", class: "quiet details", "aria-label": `Details of ${nameOf(item)}`, onclick: () => go({ item: `${item.id}` }),
      }, "Details")));
}

/** Describe ties between the results. */
function ties({ results, histogram, code }) {
  if (!code) return "";
  const distances = [...new Set(results.map(({ distance }) => distance))];
  const tied = distances.map((d) => [d, histogram?.[d] ?? results.filter(({ distance }) => distance === d).length])
    .filter(([, n]) => n > 1);
  if (!tied.length) return "";
  const at = tied.slice(0, 6).map(([d, n], i) => `${i ? number(n) : count(n)} at ${i ? "" : "distance "}${d}`);
  if (tied.length > at.length) at.push("…");
  if (!histogram) return "Items at the same distance are ordered by id.";
  return `${at.join(", ")}${at.length > 1 ? ": each" : ","} ordered by id.`;
}

/** Draw the results; `before` has their ranks before reranking. */
export function drawResults({ answer, n_bits: n, before, pick }) {
  const list = $("results"), old = places();
  const { results, code } = answer;
  list.className = `results ${layout()}`;
  list.replaceChildren(...results.map((item, i) => {
    const was = state.rerank ? before?.get(item.id) : undefined;
    const moved = was === undefined || was === i ? "" : was > i ? `up ${was - i}` : `down ${i - was}`;
    return result(item, code, n, moved, pick);
  }));
  $("ties").textContent = ties(answer);
  slide(old);
}

function places() {
  return new Map([...$("results").querySelectorAll(".result")].map((node) => [node.dataset.id, node.getBoundingClientRect()]));
}

/** Animate items to their new positions. */
function slide(old) {
  if (!state.rerank || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  for (const node of $("results").querySelectorAll(".result")) {
    const from = old.get(node.dataset.id), to = node.getBoundingClientRect();
    if (from && (from.x !== to.x || from.y !== to.y)) {
      node.animate([{ transform: `translate(${from.x - to.x}px, ${from.y - to.y}px)` }, { transform: "none" }], { duration: 350, easing: "ease-out" });
    }
  }
}

/** Summarise the results, and count those with the label of the query. */
export function status(answer, item, all) {
  const { results, total } = answer, first = (state.page - 1) * state.k;
  const range = `${number(first + 1)} to ${number(first + results.length)}`;
  const some = first > 0 || results.length < total;
  let title;
  if (state.radius !== null) {
    title = `${count(total)} within ${count(state.radius, "bit")}` + (results.length && some ? `: ${range} shown` : "");
  } else if (!results.length) title = "No results";
  else if (state.rerank) title = `${first ? `${range} of the nearest` : `The ${results.length} nearest`}, reranked`;
  else title = first ? `${range} of the nearest` : `The ${results.length} nearest${all ? ` of ${number(all)}` : ""}`;
  const label = item.metadata?.label;
  if (readable(label) && results.length) {
    const same = results.filter((found) => found.metadata?.label === label).length;
    title += `: ${same} of ${results.length} have label ${label}`;
  }
  return title;
}

export function drawPager(answer, all) {
  const total = state.radius !== null ? answer.total : Math.min(state.rerank ? RERANKED : MOST_NEAREST, all ?? MOST_NEAREST);
  const pages = Math.max(1, Math.ceil(total / state.k));
  $("pager").hidden = pages === 1 && state.page === 1;
  $("previous").disabled = state.page <= 1;
  $("next").disabled = state.page >= pages;
  $("place").textContent = `Page ${number(state.page)} of ${number(pages)}`;
  const ends = state.page >= pages && state.radius === null && !state.rerank && (all ?? Infinity) > MOST_NEAREST;
  $("end").textContent = ends ? `Only the nearest ${number(MOST_NEAREST)} items are listed. Set a radius to see more.` : "";
}

/** Draw check boxes for the fields shown with results. */
export function drawChoice() {
  const chosen = state.show ?? usualFields();
  const others = store.fields.filter(({ name, kind }) => kind !== "picture" && ![store.title, store.text].includes(name));
  $("choice").hidden = layout() !== "list" || !others.length;
  $("choices").replaceChildren(...others.map(({ name }) => el("label", {}, el("input", {
    type: "checkbox", checked: chosen.includes(name),
    onchange: (event) => {
      const now = state.show ?? usualFields();
      go({ show: event.target.checked ? [...now, name] : now.filter((one) => one !== name) }, { replace: true });
    },
  }), ` ${name}`)));
}
