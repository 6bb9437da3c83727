// What is shown, as the address of the page says it: Back works, and an address can be sent.
// It is in the part after #, which a browser does not send to the service.

const DEFAULTS = {
  view: "near", // near, compare or map
  id: "", code: "", vector: "", // the query: one of them
  k: 24, radius: null, where: "", page: 1, rescore: false,
  layout: "", // grid or list; by itself what suits the items
  show: null, // fields of metadata in the results
  item: "", // whose details are open
  a: "", b: "", // what is compared
  colour: "", // the field that colours the map
};
export const LONGEST_VECTOR = 1500; // characters, in an address

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
    else if (name === "rescore") state.rescore = value === "1";
    else if (["k", "page", "radius"].includes(name)) {
      const number = Math.floor(Number(value));
      if (number >= (name === "radius" ? 0 : 1)) state[name] = number;
    } else if (name in DEFAULTS) state[name] = value;
  }
  return state;
}

export let state = read();
let render = () => {};

/** Call this with the state now, and whenever Back or a link changes it. */
export function whenChanged(draw) {
  render = draw;
  const again = () => {
    state = read();
    render();
  };
  addEventListener("popstate", again);
}

/** Change what is shown; a new entry of the history, unless it only completes the last. */
export function go(changes, { replace = false } = {}) {
  state = { ...state, ...changes };
  const address = written(state);
  if (replace) history.replaceState(null, "", address);
  else if (address !== (location.hash || "#")) history.pushState(null, "", address);
  return render();
}

/** Change to another query: from its first page, with nothing open. */
export const goQuery = (query) => go({
  id: "", code: "", vector: "", page: 1, item: "", view: state.view === "map" ? "near" : state.view, ...query,
});
