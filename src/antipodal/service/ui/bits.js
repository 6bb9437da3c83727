// Codes as black (1) and white (0) cells.

import { el, svg } from "./dom.js";

export function bitsOf(hex, n) {
  const bits = [];
  for (const digit of hex) {
    for (let place = 3; place >= 0; place--) bits.push((parseInt(digit, 16) >> place) & 1);
  }
  return bits.slice(0, n);
}

/** Return the differing bits, counted from 1. */
export function different(hex, query, n) {
  const queryBits = bitsOf(query, n);
  return bitsOf(hex, n).flatMap((bit, i) => (bit === queryBits[i] ? [] : [i + 1]));
}

function describe(off) {
  return off.length ? `Differs in bit${off.length === 1 ? "" : "s"} ${off.join(", ")}` : "Identical code";
}

/** Draw a code, 64 bits per line, with a red mark below each bit that differs from the query. */
export function strip(hex, query, n) {
  const bits = bitsOf(hex, n);
  const queryBits = query ? bitsOf(query, n) : bits;
  const wide = Math.min(64, bits.length);
  const tall = query ? 14 : 9;
  let one = "", off = "", gap = "";
  bits.forEach((bit, i) => {
    const x = i % wide, y = Math.floor(i / wide) * tall;
    if (bit) one += `M${x} ${y}h1v9h-1z`;
    if (bit !== queryBits[i]) off += `M${x} ${y + 9}h1v5h-1z`;
    else if (query) gap += `M${x} ${y + 9}h1v5h-1z`;
  });
  const lines = Math.ceil(bits.length / wide);
  return svg("svg", {
    class: "strip", role: "img", preserveAspectRatio: "none",
    "aria-label": query ? describe(different(hex, query, n)) : `Code ${hex}`,
    viewBox: `0 0 ${wide} ${tall * lines}`, height: (query ? 20 : 14) * lines,
  }, svg("path", { class: "one", d: one }), svg("path", { class: "gap", d: gap }), svg("path", { class: "off", d: off }));
}

/** Draw two codes above each other, with the differing bits marked. */
export function bitTable(hex, query, n) {
  const item = bitsOf(hex, n), queryBits = bitsOf(query, n), off = different(hex, query, n);
  const wide = n <= 24 ? n : n % 24 === 0 && n % 32 ? 24 : 32;
  const size = 14, high = 52, left = 26, lines = Math.ceil(n / wide);
  const cells = [];
  for (let line = 0; line < lines; line++) {
    cells.push(svg("text", { x: left - 6, y: line * high + 17, "text-anchor": "end" }, `${line * wide + 1}`));
  }
  for (let i = 0; i < n; i++) {
    const x = left + (i % wide) * size, y = Math.floor(i / wide) * high + 6;
    const differs = item[i] !== queryBits[i];
    cells.push(
      svg("rect", { class: queryBits[i] ? "cell one" : "cell", x, y, width: size - 1, height: 14 }),
      svg("rect", { class: item[i] ? "cell one" : "cell", x, y: y + 15, width: size - 1, height: 14 }),
    );
    if (differs) cells.push(svg("path", { class: "off", d: `M${x + size / 2 - 0.5} ${y + 31}l4.5 7h-9z` }));
  }
  return el("figure", { class: "bits" },
    svg("svg", {
      viewBox: `0 0 ${left + wide * size} ${lines * high}`, role: "img", "aria-label": describe(off),
    }, ...cells),
    el("figcaption", {}, off.length
      ? `Query above, item below. ${off.length} of ${n} bits differ: ${off.join(", ")}.`
      : `All ${n} bits are equal.`));
}
