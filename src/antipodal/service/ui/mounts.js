// Lists the models of a service that has several: those that the key may read.

const $ = (id) => document.getElementById(id);
const KEY = "antipodal-key"; // where the pages of the models look for it

async function show() {
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const response = await fetch("v1/mounts", { headers }).catch(() => null);
  $("mounts").replaceChildren();
  $("ask").hidden = response?.status !== 401;
  if (response?.status === 401) {
    $("said").textContent = key ? "The service refused that key." : "This service wants a key.";
    return;
  }
  if (!response?.ok) {
    $("said").textContent = "The service does not answer. Is it still running?";
    return;
  }
  const { mounts } = await response.json();
  $("said").textContent = mounts.length ? "The models of this service:" : "There are no models yet.";
  for (const { name, n_bits, method } of mounts) {
    const link = document.createElement("a");
    link.href = `${name}/`;
    link.textContent = name;
    const item = document.createElement("li");
    item.append(link, `: ${method}, ${n_bits} bits`);
    $("mounts").append(item);
  }
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, $("key").value.trim());
  show();
});

show();
