// The state of the page, kept in the fragment of its URL: history and links work, and the service
// does not receive it.

const DEFAULTS = {
  view: "near", // near, compare or map
  text: "", id: "", code: "", vector: "", // the query: one of these
  k: 24, radius: null, where: "", page: 1, rerank: false,
  layout: "", // grid or list; empty: chosen by the items
  show: null, // metadata fields shown with the results
  item: "", // the item with open details
  a: "", b: "", // the alternatives compared
  colour: "", // field that colours the map
};
export const LONGEST_VECTOR = 1500; // characters in a URL

function written(state) {
  const parameters = new URLSearchParams();
  for (const [name, usual] of Object.entries(DEFAULTS)) {
    const value = state[name];
    if (value === usual || value === "" || value === null || value === false) continue;
    parameters.set(name, Array.isArray(value) ? value.join(",") : value === true ? "1" : value);
  }
  return `#${parameters}`;
}

function read() {
  const state = { ...DEFAULTS };
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
    if (name === "show") state.show = value.split(",").filter(Boolean);
    else if (name === "rerank") state.rerank = value === "1";
    else if (["k", "page", "radius"].includes(name)) {
      const number = Math.floor(Number(value));
      if (number >= (name === "radius" ? 0 : 1)) state[name] = number;
    } else if (name in DEFAULTS) state[name] = value;
  }
  return state;
}

export let state = read();
let render = () => {};

/** Set the function that draws the state; it is called when history changes the state. */
export function whenChanged(draw) {
  render = draw;
  const again = () => {
    state = read();
    render();
  };
  addEventListener("popstate", again);
}

/** Change the state, as a new history entry unless `replace`, and draw it. */
export function go(changes, { replace = false, draw = true } = {}) {
  state = { ...state, ...changes };
  const address = written(state);
  if (replace) history.replaceState(null, "", address);
  else if (address !== (location.hash || "#")) history.pushState(null, "", address);
  return draw ? render() : undefined;
}

/** Change to another query, on its first page, with details closed. */
export const goQuery = (query) => go({
  text: "", id: "", code: "", vector: "", page: 1, item: "", view: state.view === "map" ? "near" : state.view, ...query,
});
