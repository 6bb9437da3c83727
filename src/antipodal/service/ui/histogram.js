// Histogram of distances on a logarithmic axis, with the items within the radius highlighted.

import { $, count, number, svg } from "./dom.js";

const HIGH = 100, LEFT = 46, BOTTOM = 34, TOP = 8;

export function drawHistogram(histogram, r) {
  $("histogram").hidden = !histogram;
  $("within").textContent = count(r, "bit");
  if (!histogram) return;
  const inside = histogram.slice(0, r + 1).reduce((a, b) => a + b, 0);
  const all = histogram.reduce((a, b) => a + b, 0);
  $("within").textContent = `${count(r, "bit")}: ${count(inside)} of ${number(all)}`;
  const width = Math.max(240, $("histogram").clientWidth), wide = width - LEFT - 6;
  const step = wide / histogram.length, most = Math.max(...histogram, 1), floor = TOP + HIGH;
  const height = (n) => (HIGH * Math.log1p(n)) / Math.log1p(most);
  const bars = histogram.map((n, d) => {
    const tall = height(n);
    const bar = svg("rect", { x: LEFT + d * step, width: Math.max(step - 1, 0.5), y: floor - tall, height: tall, ...(d <= r && { class: "in" }) });
    bar.append(svg("title", {}, `${count(n)} at distance ${d}`));
    return bar;
  });
  const every = [1, 2, 4, 8, 16, 32, 64, 128].find((bits) => bits * step >= (width < 420 ? 30 : 44)) ?? 256;
  const marks = [];
  for (let d = 0; d < histogram.length; d += every) {
    marks.push(svg("text", { x: LEFT + (d + 0.5) * step, y: floor + 14, "text-anchor": "middle" }, `${d}`));
  }
  const apart = most >= 1e5 ? 100 : 10; // labels do not overlap
  for (const n of [0, ...[1, 2, 3, 4, 5, 6].map((i) => apart ** i).filter((value) => value <= most)]) {
    const y = floor - height(n);
    marks.push(svg("line", { x1: LEFT, x2: width - 6, y1: y, y2: y }), svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, number(n)));
  }
  marks.push(
    svg("text", { class: "axis", x: LEFT + wide / 2, y: floor + BOTTOM - 4, "text-anchor": "middle" }, "Hamming distance to the query, in bits"),
    svg("text", { class: "axis", x: -(TOP + HIGH / 2), y: 11, transform: "rotate(-90)", "text-anchor": "middle" }, "items"),
  );
  $("histogram").replaceChildren(svg("svg", {
    viewBox: `0 0 ${width} ${floor + BOTTOM}`, role: "img",
    "aria-label": `Items by Hamming distance: ${inside} of ${all} within ${r}, the most, ${most}, at ${histogram.indexOf(most)}`,
  }, ...marks, ...bars));
}
