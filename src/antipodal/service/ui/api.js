// Asking the service: this one, by addresses beside the page, or another mount beside it.

import { $ } from "./dom.js";

export class Problem extends Error {}

export async function ask(path, body, { signal, base = "" } = {}) {
  const place = `antipodal-key ${new URL(base || ".", location.href).pathname}`;
  for (;;) {
    const headers = {};
    const key = sessionStorage.getItem(place) ?? sessionStorage.getItem("antipodal-key"); // of the list of mounts
    if (key) headers.Authorization = `Bearer ${key}`;
    if (body) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(base + path, {
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
      const problem = new Problem(answer.detail || answer.title || `The service answered ${response.status}.`);
      problem.status = response.status;
      throw problem;
    }
    if ((sessionStorage.getItem(place) ?? sessionStorage.getItem("antipodal-key")) !== key) continue; // another request got one
    await askForKey(place, key ? "The service refused that key." : "This service wants one.");
  }
}

let asking = null;
function askForKey(place, why) {
  asking ??= new Promise((resolve, reject) => {
    const dialog = $("key-dialog");
    $("key-why").textContent = why;
    $("key").value = "";
    dialog.returnValue = "";
    dialog.addEventListener("close", () => {
      asking = null;
      if (dialog.returnValue !== "use") return reject(new Problem("Without a key there is nothing to show. Reload the page to give one."));
      sessionStorage.setItem(place, $("key").value.trim());
      return resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

/** The other models and stores of the service, each beside this one: none if it is alone. */
export async function otherMounts() {
  try {
    const { mounts } = await ask("v1/mounts");
    const own = location.pathname.split("/").at(-2);
    return mounts.filter(({ name }) => name !== own)
      .map((mount) => ({ ...mount, base: `../${encodeURIComponent(mount.name)}/` }));
  } catch (error) {
    if (error.status === 404) return [];
    throw error;
  }
}
