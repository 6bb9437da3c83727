// What a search found: as a grid of pictures or a list of texts, ties said, page by page.

import { strip } from "./bits.js";
import { $, count, cut, el, number } from "./dom.js";
import { face, nameOf, pictureOf, readable, store, textOf, titleOf, usualFields, valueOf } from "./items.js";
import { go, state } from "./state.js";

export const MOST_NEAREST = 1000; // that are paged through without a radius
export const RESCORED = 240; // of the finer order, whatever page is looked at

export const layout = () => state.layout || (store.hasPictures ? "grid" : "list");

function fields(item) {
  const shown = (state.show ?? usualFields()).map((name) => [name, valueOf(item, name)])
    .filter(([, value]) => value !== undefined && value !== null);
  return shown.length ? [el("span", { class: "fields" }, ...shown.map(([name, value]) => el("span", {},
    el("i", {}, name), ` ${cut(typeof value === "object" ? JSON.stringify(value) : `${value}`, 60)}`)))] : [];
}

function result(item, code, n, moved, pick) {
  const said = [`#${item.id}`, `${count(item.distance, "bit")} off`];
  if (item.score !== undefined && item.score !== null) said.push(`score ${Number(item.score.toPrecision(4))}`);
  if (moved) said.push(moved);
  const label = readable(item.metadata?.label), title = titleOf(item), text = textOf(item);
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
      el("small", {}, said.join(" · ")),
      strip(item.code, code, n),
      el("button", {
        type: "button", class: "quiet details", "aria-label": `Details of ${nameOf(item)}`, onclick: () => go({ item: `${item.id}` }),
      }, "Details")));
}

/** Which of the results are at one distance with others, and how these are ordered. */
function ties({ results, histogram }) {
  const distances = [...new Set(results.map(({ distance }) => distance))];
  const tied = distances.map((d) => [d, histogram?.[d] ?? results.filter(({ distance }) => distance === d).length])
    .filter(([, n]) => n > 1);
  if (!tied.length || state.rescore) return "";
  const at = tied.slice(0, 6).map(([d, n], i) => `${i ? number(n) : count(n)} at ${i ? "" : "distance "}${d}`);
  if (tied.length > at.length) at.push("…");
  if (!histogram) return "Items at the same distance are in order of id.";
  return `${at.join(", ")}${at.length > 1 ? ": each" : ","} in order of id.`;
}

/** Draw the results; `before` has the places that they had in another order. */
export function drawResults({ answer, n_bits: n, before, pick }) {
  const list = $("results"), old = places();
  const { results, code } = answer;
  list.className = `results ${layout()}`;
  list.replaceChildren(...results.map((item, i) => {
    const was = state.rescore ? before?.get(item.id) : undefined;
    const moved = was === undefined || was === i ? "" : was > i ? `up ${was - i}` : `down ${i - was}`;
    return result(item, code, n, moved, pick);
  }));
  $("ties").textContent = ties(answer);
  slide(old);
}

function places() {
  return new Map([...$("results").querySelectorAll(".result")].map((node) => [node.dataset.id, node.getBoundingClientRect()]));
}

/** Let items that were in view move to where they are now. */
function slide(old) {
  if (!state.rescore || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  for (const node of $("results").querySelectorAll(".result")) {
    const from = old.get(node.dataset.id), to = node.getBoundingClientRect();
    if (from && (from.x !== to.x || from.y !== to.y)) {
      node.animate([{ transform: `translate(${from.x - to.x}px, ${from.y - to.y}px)` }, { transform: "none" }], { duration: 350, easing: "ease-out" });
    }
  }
}

/** What is shown, in a sentence; and how many of it have the query's label. */
export function status(answer, item, all) {
  const { results, total } = answer, first = (state.page - 1) * state.k;
  const range = `${number(first + 1)} to ${number(first + results.length)}`;
  const some = first > 0 || results.length < total;
  let said;
  if (state.radius !== null) {
    said = `${count(total)} within ${count(state.radius, "bit")}` + (results.length && some ? `: ${range} shown` : "");
  } else if (!results.length) said = "Nothing here";
  else if (state.rescore) said = `${first ? `${range} of the nearest` : `The ${results.length} nearest`}, by the query's real values`;
  else said = first ? `${range} of the nearest` : `The ${results.length} nearest${all ? ` of ${number(all)}` : ""}`;
  const label = item.metadata?.label;
  if (readable(label) && results.length) {
    const same = results.filter((found) => found.metadata?.label === label).length;
    said += `: ${same} of ${results.length} have the label ${label}`;
  }
  return said;
}

export function drawPager(answer, all) {
  const total = state.radius !== null ? answer.total : Math.min(state.rescore ? RESCORED : MOST_NEAREST, all ?? MOST_NEAREST);
  const pages = Math.max(1, Math.ceil(total / state.k));
  $("pager").hidden = pages === 1 && state.page === 1;
  $("previous").disabled = state.page <= 1;
  $("next").disabled = state.page >= pages;
  $("place").textContent = `Page ${number(state.page)} of ${number(pages)}`;
  const ends = state.page >= pages && state.radius === null && !state.rescore && (all ?? Infinity) > MOST_NEAREST;
  $("end").textContent = ends ? `The nearest ${number(MOST_NEAREST)} are shown here: set a radius to go further.` : "";
}

/** Check boxes for the fields that results show. */
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
