// DOM helpers. Metadata is untrusted: it becomes text (textContent) or, if it is a picture in a
// data: URL, the src of an img.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

export const number = (n) => n.toLocaleString("en");
export const count = (n, one = "item") => `${number(n)} ${one}${n === 1 ? "" : "s"}`;

/** Create an element; strings among the children become text nodes. */
export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

export function svg(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** Return a list of names and values. */
export function definitions(pairs) {
  return el("dl", {}, ...pairs.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

/** Shorten a text at a space. */
export function cut(text, most) {
  if (text.length <= most) return text;
  const part = text.slice(0, most);
  return `${part.slice(0, Math.max(part.lastIndexOf(" "), most / 2))} …`;
}
