// The main page: requests the state that the URL describes, and draws it.

import { request, Problem } from "./api.js";
import { strip } from "./bits.js";
import { drawCard } from "./card.js";
import { drawCompare, findAlternatives } from "./compare.js";
import { drawDetail } from "./detail.js";
import { $, count, cut, el, number } from "./dom.js";
import { drawFilter, readWhere, showFilterError } from "./filter.js";
import { drawHistogram } from "./histogram.js";
import { face, isExact, itemOf, learnFields, nameOf, remember, store, textOf, titleOf } from "./items.js";
import { drawMap } from "./map.js";
import { drawChoice, drawPager, drawResults, layout, RERANKED, status } from "./results.js";
import { go, goQuery, LONGEST_VECTOR, state, whenChanged } from "./state.js";

const LONGEST_IMAGE = 900_000; // characters of base64 that fit a JSON body
const MOST_BITS = 128; // longer codes are folded
const OVERSAMPLING = 4; // of reranking
let model = null;
const isHamming = () => model.scoring === "hamming";
let ready = null; // a promise of the model, the fields and a sample
let touched = false; // whether the user has chosen or used a query box
let first = null; // the item that is searched by if the URL has no query
let seed = 0;
let countable = true; // false if the store is too large for a histogram
let running = null; // aborted when a newer search starts
let chosen = false; // whether an item was chosen since the last results were drawn
let last = null; // the last results: {key, query, item, answer}
const uploaded = new Map(); // queries that are too long for a URL, by their code: {body, item}

/** Load the page if necessary, run a function that sends requests, and show its error. */
async function attempt(work) {
  $("alert").hidden = true; // first, because attempts may be nested
  try {
    ready ??= load();
    await ready.catch((error) => {
      ready = null; // the next attempt loads again
      throw error;
    });
    await work();
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof Problem)) console.error(error);
    $("alert-text").textContent = error.message;
    $("retry").hidden = !error.passing;
    $("retry").onclick = () => attempt(work);
    $("alert").hidden = false;
    $("alert").scrollIntoView({ block: "nearest" });
  }
}

// The query

/** Return the request body of the query, and the item that names it. */
async function queryOf() {
  if (state.text) return { body: { text: state.text }, item: { name: `“${cut(state.text, 200)}”` } };
  if (state.id) {
    const item = await itemOf(state.id);
    if (!item) throw new Problem(`There is no item ${cut(state.id, 60)}.`);
    return { body: { id: item.id }, item };
  }
  if (state.vector) return { body: { vector: parseVector(state.vector) }, item: { name: "a pasted vector" } };
  return uploaded.get(state.code) ?? { body: { code: state.code }, item: { name: `the code ${cut(state.code, 24)}` } };
}

/** Search by an item; by its code if its id is not exact. The page scrolls to the results. */
function searchItem(item) {
  chosen = true;
  $("side-items").append($("items"));
  if (isExact(item.id)) return goQuery({ id: `${item.id}` });
  uploaded.set(item.code, { body: { code: item.code }, item });
  return goQuery({ code: item.code });
}

/** Search by a query that is too long for a URL: the URL has its code, the page keeps the rest. */
async function searchByCode(source, body, item) {
  const { codes: [code] } = await request("v1/encode", source);
  uploaded.set(code, { body, item });
  await goQuery({ code });
}

function parseVector(text) {
  const parts = text.trim().replace(/^\[|\]$/g, "").split(/[\s,;]+/).filter(Boolean);
  const vector = parts.map(Number);
  const bad = vector.findIndex((x) => !Number.isFinite(x));
  if (bad >= 0) throw new Problem(`A vector must be numbers separated by commas: value ${bad + 1} is “${parts[bad].slice(0, 40)}”.`);
  if (!vector.length) throw new Problem("Enter a vector: numbers separated by commas.");
  return vector;
}

async function searchText() {
  const text = $("text").value.trim();
  if (!text) throw new Problem("Enter a text to search for.");
  await goQuery({ text });
}

async function searchVector() {
  const vector = parseVector($("vector").value);
  const text = vector.join(",");
  if (text.length <= LONGEST_VECTOR) await goQuery({ vector: text });
  else await searchByCode({ vectors: [vector] }, { vector }, { name: "a pasted vector" });
}

/** Search by an image. One that is too large for JSON is sent as a file, and searched by its code. */
async function searchImage(file) {
  const url = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Problem(`Cannot read ${file.name}.`));
    reader.readAsDataURL(file);
  });
  const image = url.split(",")[1] ?? "";
  const item = { name: file.name, metadata: { thumbnail: url } };
  if (image.length < LONGEST_IMAGE) return searchByCode({ images: [image] }, { image }, item);
  const { codes: [code] } = await request("v1/encode", file);
  uploaded.set(code, { body: { code }, item });
  return goQuery({ code });
}

// Items to start from

function drawSample(items, caption) {
  $("sample").className = store.hasPictures ? "sample" : "sample texts";
  $("sample").replaceChildren(...remember(items).map((item) => el("li", {}, el("button", {
    type: "button", class: "item", title: nameOf(item), "aria-label": `Search by ${nameOf(item)}, id ${item.id}`,
    onclick: () => searchItem(item),
  }, ...(store.hasPictures ? [face(item)] : [el("b", {}, cut(titleOf(item) || nameOf(item), 60)), ...(titleOf(item) && textOf(item) ? [el("small", {}, cut(textOf(item), 70))] : [])])))));
  $("sample-said").textContent = caption;
}

async function showSample() {
  const { items } = await request(`v1/items?limit=${store.hasPictures ? 24 : 7}&seed=${seed}`);
  drawSample(items, "A sample of the items:");
  $("side-items").append($("items"));
  return items;
}

/** Find items by words, or by id. */
async function findItems() {
  const text = $("words").value.trim();
  if (!text) throw new Problem("Enter words or the id of an item, or choose one below.");
  const named = await itemOf(text);
  if (named) return searchItem(named);
  const { items, looked_at: looked, total } = await request("v1/find", { text: text.slice(0, 200), limit: 24 });
  const among = looked < total ? ` among the first ${number(looked)} of ${number(total)}` : "";
  drawSample(items, `${items.length === 24 ? "The 24 most relevant items" : count(items.length)} with “${text}”${among}${items.length ? ":" : "."}`);
  $("found-items").append($("items")); // directly under the query box
  return undefined;
}

// Searching

/** Send the search of the current state, unless it was the last one. */
async function search() {
  const { k, page, radius, rerank } = state;
  const key = JSON.stringify([state.text, state.id, state.code, state.vector, k, page, radius, state.where, rerank]);
  if (last?.key === key) return last;
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  const query = await queryOf();
  signal.throwIfAborted(); // a newer search has started
  let where;
  try {
    where = readWhere(state.where);
    showFilterError("");
  } catch (error) {
    showFilterError(error.message);
    return null;
  }
  // Kept vectors rerank all queries except codes. Codes of a Hamming model can be scored asymmetrically.
  const canRerank = model.keep_vectors ? !query.body.code : Boolean(query.body.text || query.body.vector || query.body.image);
  const body = { ...query.body, offset: (page - 1) * k, limit: k };
  if (isHamming() && radius !== null) body.radius = radius;
  else body.k = page * k;
  if (rerank && canRerank && body.radius === undefined) {
    if (model.keep_vectors) Object.assign(body, { rerank: OVERSAMPLING, k: Math.max(RERANKED, page * k) });
    else if (isHamming()) body.scoring = "asymmetric";
  }
  const isPlain = isHamming() && !body.rerank && !body.scoring;
  if (isPlain) body.histogram = countable;
  if (where) body.where = where;
  let answer;
  try {
    answer = await request("v1/search", body, { signal });
  } catch (error) {
    const [, wrong] = error.message.match(/^where is not a valid filter: (.*)/) ?? [];
    if (wrong) {
      showFilterError(`The filter is not valid: ${wrong}`);
      return null;
    }
    if (!body.histogram || !/histogram/.test(error.message)) throw error;
    countable = false;
    return search();
  }
  remember(answer.results);
  const sameQuery = JSON.stringify(last?.query.body) === JSON.stringify(query.body);
  const before = sameQuery && !last.reranked
    ? new Map(last.answer.results.map(({ id }, i) => [id, i])) : null;
  last = { key, query, where, answer, before, canRerank, reranked: Boolean(body.rerank || body.scoring) };
  return last;
}

let drawing = 0; // number of the latest call of render

/** Draw the current state. */
async function render() {
  drawing += 1;
  const own = drawing, isStale = () => own !== drawing;
  if (!state.text && !state.id && !state.code && !state.vector) {
    go(isExact(first.id) ? { id: `${first.id}` } : { code: first.code }, { replace: true, draw: false });
  }
  for (const tab of document.querySelectorAll("nav [name=view]")) tab.checked = tab.value === state.view;
  drawFilter();
  const among = $("results").contains(document.activeElement) || $("compare").contains(document.activeElement) || $("map-view").contains(document.activeElement);
  const before = last;
  const found = await search();
  if (!found || isStale()) return;
  const { answer, query, where, canRerank } = found;
  const pick = (item) => searchItem(item);
  const all = answer.histogram?.reduce((a, b) => a + b, 0);
  for (const view of ["near", "compare", "map"]) $({ near: "near", compare: "compare", map: "map-view" }[view]).hidden = state.view !== view;
  $("found").hidden = false;
  drawQuery(query.item, answer.code);
  if (state.view === "near") {
    const { results } = answer;
    $("distances").hidden = !answer.code;
    if (state.radius !== null) $("radius").value = state.radius;
    else $("radius").value = results.length ? results.at(-1).distance : 0;
    $("k").value = `${state.k}`;
    for (const choice of document.querySelectorAll("[name=layout]")) choice.checked = choice.value === layout();
    $("rerank").checked = found.reranked;
    $("rerank").disabled = !canRerank;
    drawHistogram(answer.histogram, Number($("radius").value));
    $("status").textContent = status(answer, query.item, all);
    drawResults({ answer, n_bits: model.n_bits, before: found.before, pick });
    drawPager(answer, all ?? model.items);
    drawChoice();
  } else if (state.view === "compare") {
    await drawCompare({ model, query: query.body, item: query.item, where, pick, isStale });
  } else {
    await drawMap({ found: answer.results.map(({ id }) => id), queryId: state.id, queryName: nameOf(query.item), pick, isStale });
  }
  const item = state.item ? await itemOf(state.item) : null;
  if (isStale()) return;
  drawDetail(item, { code: answer.code, n_bits: model.n_bits, queryName: nameOf(query.item) });
  const changed = before && before.key !== found.key;
  if (among && changed) $("status").focus({ preventScroll: true }); // the focused item was replaced: keep the keyboard position
  if ((among && changed) || chosen) $("found").scrollIntoView();
  chosen = false;
}

function drawQuery(item, code) {
  const text = textOf(item);
  const inBox = state.text && $("text").value.trim() === state.text && $("ask").elements.by.value === "text";
  $("query").className = inBox ? "unseen" : store.hasPictures || item.metadata?.thumbnail ? "query" : "query plain";
  const bits = code ? [strip(code, "", model.n_bits), el("code", {}, code)] : [];
  $("query").replaceChildren(
    ...(store.hasPictures || item.metadata?.thumbnail ? [face(item)] : []),
    el("div", {}, el("small", {}, "Query"), el("b", {}, nameOf(item)),
      ...(text && text !== nameOf(item) ? [el("span", { class: "text" }, cut(text, 240))] : []),
      ...(bits.length && model.n_bits > MOST_BITS ? [el("details", {}, el("summary", {}, "Code"), ...bits)] : bits),
      ...(uploaded.has(state.code) && uploaded.get(state.code).body.code === undefined
        ? [el("small", {}, `This query is too long for a URL. A link to this page contains its code${isHamming() ? "" : ", which finds almost the same items"}.`)] : [])),
  );
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if ($("filter").contains(document.activeElement)) document.activeElement.dispatchEvent(new Event("change")); // Enter in the filter
  else attempt({ text: searchText, vector: searchVector, item: findItems }[$("ask").elements.by.value] ?? findItems);
});
/** Show the query box of one kind. */
function showBox(kind) {
  $("ask").elements.by.value = kind;
  for (const part of document.querySelectorAll("[data-by]")) part.hidden = part.dataset.by !== kind;
}
$("ask").addEventListener("change", (event) => {
  if (event.target.name === "by") showBox(event.target.value);
});
// A click on the checked button is a choice too, but no change.
$("ask").addEventListener("click", (event) => { touched ||= event.target.name === "by"; });
$("ask").addEventListener("input", () => { touched = true; });
$("vector-file").addEventListener("change", () => attempt(async () => {
  const [file] = $("vector-file").files;
  if (!file) return;
  $("vector").value = await file.text();
  await searchVector();
}));
$("image").addEventListener("click", () => {
  $("image").value = ""; // allows choosing the same file again
});
$("image").addEventListener("change", () => {
  const [file] = $("image").files;
  if (file) attempt(() => searchImage(file));
});
$("others").addEventListener("click", () => {
  seed += 1;
  attempt(showSample);
});
$("radius").addEventListener("input", () => drawHistogram(last?.answer.histogram, Number($("radius").value)));
// A slider released at its old position sends no "change".
for (const release of ["change", "pointerup"]) {
  $("radius").addEventListener(release, () => {
    if (state.radius !== Number($("radius").value)) go({ radius: Number($("radius").value), page: 1, rerank: false });
  });
}
$("k").addEventListener("change", () => go({ k: Number($("k").value), radius: null, page: 1 }));
$("rerank").addEventListener("change", () => go({ rerank: $("rerank").checked, radius: null, page: 1 }));
$("previous").addEventListener("click", () => turn(-1));
$("next").addEventListener("click", () => turn(1));
async function turn(by) {
  await go({ page: state.page + by });
  $("status").focus({ preventScroll: true });
  $("status").scrollIntoView();
}
for (const choice of document.querySelectorAll("[name=layout]")) choice.addEventListener("change", () => go({ layout: choice.value }));
for (const tab of document.querySelectorAll("nav [name=view]")) tab.addEventListener("change", () => go({ view: tab.value }));
addEventListener("resize", () => last && drawHistogram(last.answer.histogram, Number($("radius").value)));

/** Load the model, the fields and a sample. A choice that the user has made meanwhile is kept. */
async function load() {
  [model] = await Promise.all([request("v1/model"), learnFields()]);
  store.idType = model.id_type;
  drawCard(model);
  $("rerank-row").hidden = !model.keep_vectors && !isHamming();
  $("rerank-name").textContent = model.keep_vectors ? "rerank" : "asymmetric scoring";
  if (model.texts && !touched) {
    const focused = document.activeElement === $("words");
    showBox("text");
    if (focused) $("text").focus();
  }
  $("view-compare").hidden = (await findAlternatives(model)).size < 2;
  [first] = await showSample();
  if (!first) throw new Problem("The store is empty. Add items with PUT /v1/items.");
}

$("text").value = state.text;
whenChanged(() => attempt(render));
attempt(render);
