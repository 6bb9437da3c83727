// The model card: method, parameters, scores and bit statistics.

import { $, count, definitions, el, number } from "./dom.js";

function written(value) {
  if (typeof value === "number") return `${Number.isInteger(value) ? value : Number(value.toPrecision(4))}`;
  return typeof value === "object" ? JSON.stringify(value) : `${value}`;
}

export function drawCard(model) {
  const list = (values) => definitions(Object.entries(values).map(([name, value]) => [name, written(value)]));
  const card = [list({
    method: model.method,
    bits: model.n_bits,
    scoring: model.scoring,
    "kept vectors": model.keep_vectors ?? "none",
    features: model.n_features,
    items: number(model.items),
    identity: model.identity.slice(0, 12) || "–",
  })];
  const health = model.bit_health;
  if (health) {
    card.push(el("h3", {}, "Bit statistics of the stored codes"), list({
      "balance (50 is best)": `${health.bit_balance.toFixed(1)} %`,
      "correlation (0 is best)": `${health.bit_correlation.toFixed(1)} %`,
      [health.sample < model.items ? `distinct codes in a sample of ${number(health.sample)}` : "distinct codes"]: number(health.distinct_codes),
    }));
  }
  if (model.scores) card.push(el("h3", {}, "Scores"), list(model.scores));
  card.push(el("details", {}, el("summary", {}, "Parameters"), list(model.parameters)));
  $("model").replaceChildren(...card);
  $("summary").textContent = `${model.method} · ${count(model.n_bits, "bit")} · ${count(model.items)}`;
  $("width").textContent = `(${model.n_features} values)`;
  $("by-image").hidden = !model.images;
  $("by-text").hidden = !model.texts;
  $("radius").max = model.n_bits;
}
