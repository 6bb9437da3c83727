// The page of the service: asks /v1, draws what comes back. Metadata is not ours, so it only
// ever becomes text (textContent) or, if it is a small picture in a data: URL, the src of an img.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const SHOWN = 96; // results drawn at once
const PICTURE = /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$/;
const count = (n, one = "item") => `${n.toLocaleString("en")} ${one}${n === 1 ? "" : "s"}`;

let model = null;
let seed = 0;
let last = null; // the query that is shown: {body, item}, and its histogram
let answers = { results: [], total: 0 };
let drawn = 0;
let countable = true; // not if the store is too large for a histogram
let asked; // the radius of the latest search, if it had one
let running = null; // aborted when a newer search starts
let filter = ""; // as it was typed, of the latest search

/** Make an element; strings among the children become text. */
function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

function svg(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// Asking the service

class Problem extends Error {}
class FilterProblem extends Problem {}

async function ask(path, body, signal) {
  for (;;) {
    const headers = {};
    const key = sessionStorage.getItem("antipodal-key");
    if (key) headers.Authorization = `Bearer ${key}`;
    if (body) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(path, {
        method: body ? "POST" : "GET",
        headers,
        body: body && JSON.stringify(body),
        signal,
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem("The service does not answer. Is it still running?");
    }
    const answer = await response.json().catch((error) => {
      if (error.name === "AbortError") throw error;
      return {}; // not ours: perhaps a proxy's
    });
    if (response.ok) return answer;
    if (response.status !== 401) {
      throw new Problem(answer.detail || answer.title || `The service answered ${response.status}.`);
    }
    if (sessionStorage.getItem("antipodal-key") !== key) continue; // another request got one
    await askForKey(key ? "The service refused that key." : "This service wants one.");
  }
}

let asking = null;
function askForKey(why) {
  asking ??= new Promise((resolve, reject) => {
    const dialog = $("key-dialog");
    $("key-why").textContent = why;
    $("key").value = "";
    dialog.returnValue = "";
    dialog.addEventListener("close", () => {
      asking = null;
      if (dialog.returnValue !== "use") return reject(new Problem("Without a key there is nothing to show. Reload the page to give one."));
      sessionStorage.setItem("antipodal-key", $("key").value.trim());
      return resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

/** Run something that asks the service; what goes wrong is told to the person. */
async function attempt(work) {
  try {
    await work();
    $("alert").hidden = true;
  } catch (error) {
    if (error.name === "AbortError") return;
    const atFilter = error instanceof FilterProblem;
    if (!(error instanceof Problem)) console.error(error);
    if (atFilter) sayOfFilter(error.message);
    else $("alert").textContent = error.message;
    $("alert").hidden = atFilter;
    $(atFilter ? "where-wrong" : "alert").scrollIntoView({ block: "nearest" });
  }
}

/** Say at the filter what is wrong with it, if anything is. */
function sayOfFilter(wrong) {
  $("where-wrong").textContent = wrong;
  $("where").setAttribute("aria-invalid", wrong ? "true" : "false");
  if (wrong) $("where").closest("details").open = true;
}

// Drawing

function nameOf(item) {
  const { title, label } = item.metadata ?? {};
  const name = [title, label].filter((part) => ["string", "number"].includes(typeof part) && part !== "");
  return name.length ? name.join(" · ") : `item ${item.id}`;
}

function picture(item) {
  const source = item.metadata?.thumbnail;
  if (typeof source === "string" && PICTURE.test(source)) {
    return el("img", { class: "pic", src: source, alt: "" });
  }
  return el("span", { class: "pic", "aria-hidden": "true" }, item.id === undefined ? "?" : `${item.id}`);
}

function bitsOf(hex) {
  const bits = [];
  for (const digit of hex) {
    for (let place = 3; place >= 0; place--) bits.push((parseInt(digit, 16) >> place) & 1);
  }
  return bits.slice(0, model.n_bits);
}

/** A code as black (1) and white (0) cells, 64 a line; below each bit that differs, a red mark. */
function strip(hex, query) {
  const bits = bitsOf(hex);
  const asked = query ? bitsOf(query) : bits;
  const wide = Math.min(64, bits.length);
  const tall = query ? 14 : 9;
  let one = "", off = "", gap = "";
  const different = [];
  bits.forEach((bit, i) => {
    const x = i % wide, y = Math.floor(i / wide) * tall;
    if (bit) one += `M${x} ${y}h1v9h-1z`;
    if (bit !== asked[i]) {
      off += `M${x} ${y + 9}h1v5h-1z`;
      different.push(i + 1);
    } else if (query) gap += `M${x} ${y + 9}h1v5h-1z`;
  });
  const says = !query ? `Code ${hex}` : different.length
    ? `Differs in bit${different.length === 1 ? "" : "s"} ${different.join(", ")}` : "The same code";
  return svg("svg", {
    class: "strip", role: "img", "aria-label": says, preserveAspectRatio: "none",
    viewBox: `0 0 ${wide} ${tall * Math.ceil(bits.length / wide)}`,
    height: (query ? 20 : 14) * Math.ceil(bits.length / wide),
  }, svg("path", { class: "one", d: one }), svg("path", { class: "gap", d: gap }), svg("path", { class: "off", d: off }));
}

function drawQuery(item, code) {
  $("query").replaceChildren(
    picture(item),
    el("div", {}, el("small", {}, "Query"), el("b", {}, item.id === undefined ? item.name : nameOf(item)), strip(code), el("code", {}, code)),
  );
}

function drawHistogram() {
  const { histogram } = last;
  const r = Number($("radius").value);
  $("histogram").hidden = !histogram;
  $("within").textContent = count(r, "bit");
  if (!histogram) return;
  const inside = histogram.slice(0, r + 1).reduce((a, b) => a + b, 0);
  const all = histogram.reduce((a, b) => a + b, 0);
  $("within").textContent = `${count(r, "bit")}: ${count(inside)} of ${all.toLocaleString("en")}`;
  const width = Math.max(200, $("histogram").clientWidth), high = 90, step = width / histogram.length, most = Math.max(...histogram, 1);
  const bars = histogram.map((n, d) => {
    const tall = n && Math.max(1.5, (high * n) / most); // one item in a million is still seen
    const bar = svg("rect", { x: d * step, width: Math.max(step - 1, 0.5), y: high - tall, height: tall, ...(d <= r && { class: "in" }) });
    bar.append(svg("title", {}, `${count(n)} at distance ${d}`));
    return bar;
  });
  const every = Math.max(1, Math.ceil(histogram.length / 64)) * 8;
  for (let d = 0; d < histogram.length; d += every) {
    bars.push(svg("text", { x: (d + 0.5) * step, y: high + 13, "text-anchor": d ? "middle" : "start" }, `${d}`));
  }
  $("histogram").replaceChildren(svg("svg", {
    viewBox: `0 0 ${width} ${high + 16}`, role: "img",
    "aria-label": `Items by Hamming distance: ${inside} of ${all} within ${r}, the most, ${most}, at ${histogram.indexOf(most)}`,
  }, svg("line", { x1: 0, x2: width, y1: high, y2: high }), ...bars));
}

function drawResults() {
  const part = answers.results.slice(drawn, drawn + SHOWN);
  $("results").append(...part.map((item) => el("li", {}, el("button", {
    type: "button", class: "item", title: `Search by item ${item.id}`, onclick: () => attempt(() => searchItem(item)),
  }, picture(item), el("b", {}, nameOf(item)),
  el("small", {}, `#${item.id} · ${count(item.distance, "bit")} off`), strip(item.code, answers.code)))));
  drawn += part.length;
  $("more").hidden = drawn >= answers.results.length;
}

function drawModel() {
  const written = (value) => {
    if (typeof value === "number") return `${Number.isInteger(value) ? value : Number(value.toPrecision(4))}`;
    return typeof value === "object" ? JSON.stringify(value) : `${value}`;
  };
  const list = (values) => el("dl", {}, ...Object.entries(values)
    .flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, written(value))]));
  const card = [list({
    method: model.method,
    bits: model.n_bits,
    features: model.n_features,
    items: model.items.toLocaleString("en"),
    identity: model.identity.slice(0, 12) || "–",
  })];
  const health = model.bit_health;
  if (health) {
    card.push(el("h3", {}, "Bit health of stored codes"), list({
      "balance (50 is best)": `${health.bit_balance.toFixed(1)} %`,
      "correlation (0 is best)": `${health.bit_correlation.toFixed(1)} %`,
      [health.sample < model.items ? `distinct codes of a sample of ${health.sample.toLocaleString("en")}` : "distinct codes"]: health.distinct_codes.toLocaleString("en"),
    }));
  }
  if (model.scores) card.push(el("h3", {}, "Scores"), list(model.scores));
  card.push(el("details", {}, el("summary", {}, "Parameters"), list(model.parameters)));
  $("model").replaceChildren(...card);
  $("summary").textContent = `${model.method} · ${count(model.n_bits, "bit")} · ${count(model.items)}`;
  $("width").textContent = `(${model.n_features} of them)`;
  $("by-image").hidden = !model.images;
  $("radius").max = model.n_bits;
}

// Searching

/** Show the items nearest to a query, or those within the slider's radius. */
async function search(query, item, byRadius = false) {
  running?.abort();
  running = new AbortController();
  const body = { ...query, histogram: countable };
  if (byRadius) body.radius = Number($("radius").value);
  else body.k = Number($("k").value);
  asked = body.radius;
  const where = readFilter();
  if (where) body.where = where;
  try {
    answers = await ask("v1/search", body, running.signal);
  } catch (error) {
    const [, wrong] = error.message.match(/^where is not a valid filter: (.*)/) ?? [];
    if (wrong) throw new FilterProblem(`The filter is not valid: ${wrong}`);
    if (!body.histogram || !/histogram/.test(error.message)) throw error;
    countable = false;
    return search(query, item, byRadius);
  }
  sayOfFilter("");
  last = { query, item, byRadius, histogram: answers.histogram };
  const { results, total } = answers;
  if (!byRadius) $("radius").value = results.length ? results[results.length - 1].distance : 0;
  $("found").hidden = false;
  drawQuery(item, answers.code);
  drawHistogram();
  let status = byRadius
    ? `${count(total)} within ${count(body.radius, "bit")}` + (results.length < total ? `, the first ${results.length} shown` : "")
    : `The ${results.length} nearest`;
  const label = item.metadata?.label;
  if (["string", "number"].includes(typeof label) && results.length) {
    const same = results.filter((found) => found.metadata?.label === label).length;
    status += `: ${same} of ${results.length} have the label ${label}`;
  }
  $("status").textContent = status;
  const among = $("results").contains(document.activeElement);
  drawn = 0;
  $("results").replaceChildren();
  drawResults();
  if (among) { // the result that was picked is gone: keep the keyboard's place, show the query
    $("status").focus({ preventScroll: true });
    $("found").scrollIntoView();
  }
}

/** Numbers beyond 2⁵³ are not exact here: such an item is searched by its code. */
function searchItem(item) {
  return search(Number.isSafeInteger(item.id) ? { id: item.id } : { code: item.code }, item);
}

function readFilter() {
  filter = $("where").value.trim();
  if (!filter) return null;
  let where;
  try {
    where = JSON.parse(filter);
  } catch {
    throw new FilterProblem("The filter is not valid: it must be JSON, such as {\"label\": 3}.");
  }
  if (where === null || typeof where !== "object" || Array.isArray(where)) {
    throw new FilterProblem("The filter is not valid: it must be an object, such as {\"label\": 3}.");
  }
  return where;
}

/** Search again if the filter has changed; without a search yet, only check it. */
function applyFilter() {
  if ($("where").value.trim() === filter) return;
  attempt(last ? () => search(last.query, last.item, last.byRadius) : async () => {
    readFilter();
    sayOfFilter("");
  });
}

async function searchTyped() {
  if ($("ask").elements.by.value === "vector") {
    await search({ vector: parseVector($("vector").value) }, { name: "a pasted vector" });
  } else {
    const id = $("item-id").value.trim();
    if (!/^-?\d+$/.test(id)) throw new Problem("An id is a whole number: type one, or pick an item above.");
    await searchItem(await ask(`v1/items/${id}`));
  }
}

function parseVector(text) {
  const parts = text.trim().replace(/^\[|\]$/g, "").split(/[\s,;]+/).filter(Boolean);
  const vector = parts.map(Number);
  const bad = vector.findIndex((x) => !Number.isFinite(x));
  if (bad >= 0) throw new Problem(`A vector is numbers with commas between: number ${bad + 1} is “${parts[bad].slice(0, 40)}”.`);
  if (!vector.length) throw new Problem("Paste a vector first: numbers with commas between.");
  return vector;
}

async function searchImage(file) {
  const url = await new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Problem(`${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });
  await search({ image: url.split(",")[1] ?? "" }, { name: file.name, metadata: { thumbnail: url } });
}

async function showSample() {
  const { items } = await ask(`v1/items?limit=24&seed=${seed}`);
  $("sample").replaceChildren(...items.map((item) => el("li", {}, el("button", {
    type: "button", class: "item", title: nameOf(item), "aria-label": `Search by ${nameOf(item)}, id ${item.id}`,
    onclick: () => attempt(() => searchItem(item)),
  }, picture(item)))));
  return items;
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (document.activeElement === $("where")) applyFilter(); // Enter there does not mean the id
  else attempt(searchTyped);
});
$("ask").addEventListener("change", (event) => {
  if (event.target.name !== "by") return;
  for (const part of document.querySelectorAll("[data-by]")) part.hidden = part.dataset.by !== event.target.value;
});
$("image").addEventListener("click", () => {
  $("image").value = ""; // so that the same file can be chosen again
});
$("image").addEventListener("change", () => {
  const [file] = $("image").files;
  if (file) attempt(() => searchImage(file));
});
$("others").addEventListener("click", () => {
  seed += 1;
  attempt(showSample);
});
$("radius").addEventListener("input", drawHistogram);
// A slider that is let go where it was taken up sends no "change".
for (const release of ["change", "pointerup"]) {
  $("radius").addEventListener(release, () => {
    if (asked !== Number($("radius").value)) attempt(() => search(last.query, last.item, true));
  });
}
$("k").addEventListener("change", () => attempt(() => search(last.query, last.item)));
$("where").addEventListener("change", applyFilter);
$("more").addEventListener("click", drawResults);
addEventListener("resize", () => last && drawHistogram());

attempt(async () => {
  model = await ask("v1/model");
  drawModel();
  const [first] = await showSample();
  if (first) await searchItem(first);
  else throw new Problem("The store is empty: PUT items to /v1/items first.");
});
