// The projection map: a sample of items placed by their codes, coloured by a field.

import { request } from "./api.js";
import { $, count, cut, el, number, svg } from "./dom.js";
import { store } from "./items.js";
import { go, state } from "./state.js";

const COLOURS = 9;
const SIDE = 1000;
const at = (x) => ((x + 1.03) / 2.06) * SIDE;
let points = [];
let current = -1; // the point selected with the keyboard
let shownFor = null; // the field of the drawn map

/** Return the fields that can colour the map. */
function colourable() {
  return store.fields.filter(({ kind, distinct, name }) => ["number", "string", "boolean", "mixed"].includes(kind) && distinct > 1
    && ![store.title, store.text].includes(name));
}

function usual() {
  const fields = colourable();
  const few = fields.filter(({ distinct, kind }) => distinct <= 40 && kind !== "number").sort((a, b) => a.distinct - b.distinct);
  return (fields.find(({ name }) => name === "label") ?? few[0] ?? fields[0])?.name ?? "";
}

/** Return the class of each value, and the names of the classes: values or ranges. */
function classes(values) {
  const numbers = values.filter((value) => typeof value === "number");
  const distinct = new Set(numbers);
  if (numbers.length > values.length / 2 && distinct.size > COLOURS + 3) {
    const sorted = [...numbers].sort((a, b) => a - b);
    const bounds = [0, 1, 2, 3, 4].map((i) => sorted[Math.min(sorted.length - 1, Math.ceil((i * sorted.length) / 5))]);
    const of = (value) => (typeof value === "number" ? `s${bounds.filter((bound, i) => i && value >= bound).length}` : "none");
    return { of, names: bounds.map((bound, i) => [`s${i}`, i < 4 ? `${bound} to ${bounds[i + 1]}` : `from ${bound}`]) };
  }
  const often = new Map();
  for (const value of values) if (value !== null) often.set(value, (often.get(value) ?? 0) + 1);
  const order = [...often.keys()].sort((a, b) => often.get(b) - often.get(a));
  const most = order.slice(0, order.length > COLOURS + 1 ? COLOURS : COLOURS + 1);
  const known = new Map(most.map((value, i) => [value, `c${i}`]));
  const names = [...most].sort((a, b) => (typeof a === "number" && typeof b === "number" ? a - b : `${a}`.localeCompare(`${b}`)))
    .map((value) => [known.get(value), `${value}`]);
  if (order.length > most.length) names.push(["none", `${count(order.length - most.length, "other")}`]);
  return { of: (value) => known.get(value) ?? "none", names };
}

export async function drawMap({ found, queryId, queryName, pick, isStale }) {
  const fields = colourable(), field = state.colour || usual();
  $("colour").replaceChildren(...fields.map(({ name }) => el("option", { selected: name === field }, name)));
  $("colour-row").hidden = !fields.length;
  if (shownFor !== field) {
    $("map-said").textContent = "Computing the map. This takes some seconds …"; // the first line of the panel
    $("map").replaceChildren();
    const answer = await request(`v1/map?field=${encodeURIComponent(field)}`);
    if (isStale()) return;
    ({ points } = answer);
    shownFor = field;
    current = -1;
    $("map-said").textContent = `${number(points.length)} of ${count(answer.total)}, ${count(answer.distinct, "distinct code")}. `
      + "Items with similar codes are close; the axes have no meaning. Items with the same code are arranged around one point.";
    const { of, names } = classes(points.map(({ value }) => value));
    const dots = points.map((point, i) => {
      const dot = svg("circle", { class: `dot ${of(point.value)}`, cx: at(point.x), cy: at(-point.y), r: 6, "data-id": point.id });
      dot.append(svg("title", {}, [point.name ?? `item ${point.id}`, ...(point.value === null ? [] : [`${field}: ${point.value}`])].join("\n")));
      dot.addEventListener("click", () => pick(points[i]));
      dot.addEventListener("pointerenter", () => say(i));
      return dot;
    });
    $("map").replaceChildren(svg("g", { id: "dots" }, ...dots), svg("g", { id: "placed" }), svg("circle", { id: "here", r: 13, visibility: "hidden" }));
    $("map").setAttribute("aria-label", `Map of ${count(points.length)}. Arrow keys move between items, Enter searches by the selected one.`);
    $("legend").replaceChildren(...names.map(([name, label]) => el("li", {}, el("button", {
      type: "button", class: `key ${name}`, "aria-pressed": "false", onclick: (event) => only(name, event.currentTarget),
    }, label))));
  }
  const near = new Set(found.map(String));
  for (const dot of $("dots").children) {
    dot.classList.toggle("near", near.has(dot.dataset.id));
    dot.classList.toggle("query", queryId !== "" && dot.dataset.id === queryId);
  }
  await drawPlaced({ found, queryId, queryName, pick, isStale });
  $("map").onkeydown = (event) => {
    if (event.key === "Enter" && current >= 0) pick(points[current]);
    else if (event.key in ARROWS) {
      event.preventDefault();
      move(...ARROWS[event.key]);
    }
  };
}

/** Draw the query, and the results outside the sample, among the items with similar codes. */
async function drawPlaced({ found, queryId, queryName, pick, isStale }) {
  const sampled = new Set(points.map(({ id }) => `${id}`));
  const wanted = [...new Set([...(queryId === "" ? [] : [queryId]), ...found.slice(0, 24).map(String)])];
  const ids = wanted.map((id) => (store.idType === "string" ? id : Number(id)));
  const { places } = ids.length ? await request("v1/map/places", { ids }) : { places: [] };
  if (isStale()) return;
  const dots = places.filter(({ id }) => !sampled.has(`${id}`) && `${id}` !== queryId).map((place) => {
    const dot = svg("circle", { class: "dot near outside", cx: at(place.x), cy: at(-place.y), r: 6, "data-id": place.id });
    dot.append(svg("title", {}, `item ${place.id}, outside the sample`));
    dot.addEventListener("click", () => pick(place));
    return dot;
  });
  const own = places.find(({ id }) => `${id}` === queryId), nearest = own ? [own] : places.slice(0, 3);
  if (nearest.length) {
    const mean = (axis) => nearest.reduce((sum, place) => sum + place[axis], 0) / nearest.length;
    const x = at(mean("x")), y = at(-mean("y")), right = x > SIDE * 0.7;
    dots.push(
      svg("circle", { class: "query-ring", cx: x, cy: y, r: 17 }),
      svg("text", { class: "query-name", x: x + (right ? -24 : 24), y: y + 9, "text-anchor": right ? "end" : "start" }, cut(queryName, 40)),
    );
  }
  $("placed").replaceChildren(...dots);
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

/** Select the nearest point in a direction. */
function move(dx, dy) {
  const from = points[current] ?? { x: 0, y: 0 };
  let best = -1, least = Infinity;
  points.forEach((point, i) => {
    const along = (point.x - from.x) * dx + (point.y - from.y) * dy;
    const across = Math.abs((point.x - from.x) * dy) + Math.abs((point.y - from.y) * dx);
    if (i !== current && (current < 0 || (along > 0 && along >= across)) && Math.hypot(along, across) < least) {
      best = i;
      least = Math.hypot(along, across);
    }
  });
  if (best >= 0) say(best);
}

function say(i) {
  current = i;
  const point = points[i], here = $("here");
  here.setAttribute("cx", at(point.x));
  here.setAttribute("cy", at(-point.y));
  here.setAttribute("visibility", "visible");
  $("map-item").textContent = `${point.name ?? `item ${point.id}`}${point.value === null ? "" : ` · ${point.value}`} · #${point.id}`;
}

/** Highlight one colour, or show all. */
function only(name, button) {
  const on = button.getAttribute("aria-pressed") !== "true";
  for (const one of $("legend").querySelectorAll("button")) one.setAttribute("aria-pressed", "false");
  button.setAttribute("aria-pressed", `${on}`);
  for (const dot of $("dots").children) dot.classList.toggle("dim", on && !dot.classList.contains(name));
}

$("colour").addEventListener("change", () => go({ colour: $("colour").value }));
