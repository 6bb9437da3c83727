// List of the mounts that the key may read.

const $ = (id) => document.getElementById(id);
const KEY = "antipodal-key"; // read by the pages of the mounts

async function show() {
  const key = sessionStorage.getItem(KEY);
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const response = await fetch("v1/mounts", { headers }).catch(() => null);
  $("mounts").replaceChildren();
  $("ask").hidden = response?.status !== 401;
  if (response?.status === 401) {
    $("said").textContent = key ? "The service rejected this key." : "This service requires an API key.";
    return;
  }
  if (!response?.ok) {
    $("said").textContent = "The service does not respond. Is it running? ";
    const again = document.createElement("button");
    again.textContent = "Try again";
    again.addEventListener("click", show);
    $("said").append(again);
    return;
  }
  const { mounts } = await response.json();
  $("said").textContent = mounts.length ? "Collections of this service:" : "This service has no collections.";
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
