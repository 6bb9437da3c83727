// Details of one item: its metadata, and its bits compared with the query.

import { bitTable, different, strip } from "./bits.js";
import { $, count, definitions, el } from "./dom.js";
import { isExact, nameOf, pictureOf } from "./items.js";
import { go, goQuery, state } from "./state.js";

function written(value) {
  if (typeof value === "string") return value;
  return typeof value === "object" && value !== null ? JSON.stringify(value, null, 1) : String(value);
}

/** Open or close the details of an item. */
export function drawDetail(item, { code, n_bits: n, queryName }) {
  const dialog = $("detail");
  if (!item) {
    if (dialog.open) dialog.close();
    return;
  }
  const off = code ? different(item.code, code, n).length : 0;
  const metadata = Object.entries(item.metadata ?? {}).filter(([, value]) => !(typeof value === "string" && value.startsWith("data:")));
  const image = pictureOf(item);
  $("detail-title").textContent = nameOf(item);
  $("detail-body").replaceChildren(
    ...(image ? [image] : []),
    el("p", {}, `#${item.id}`, code ? ` · distance ${off} from ${queryName}` : ""),
    el("h3", {}, "Metadata"),
    metadata.length ? definitions(metadata.map(([name, value]) => [name, written(value)])) : el("p", {}, "None."),
    el("h3", {}, "Code"),
    code ? bitTable(item.code, code, n) : strip(item.code, "", n),
    el("code", {}, item.code),
  );
  $("detail-search").onclick = () => goQuery(isExact(item.id) ? { id: `${item.id}` } : { code: item.code });
  if (!dialog.open) {
    dialog.showModal();
    dialog.scrollTop = 0;
  }
}

$("detail-close").addEventListener("click", () => go({ item: "" }));
$("detail").addEventListener("cancel", (event) => { // Escape
  event.preventDefault();
  go({ item: "" });
});
$("detail").addEventListener("click", (event) => { // on the backdrop
  if (event.target === $("detail") && state.item) go({ item: "" });
});
