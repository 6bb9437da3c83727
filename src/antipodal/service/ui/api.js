// Requests to the service, at paths relative to the page, or to another mount.

import { $ } from "./dom.js";

const PAUSE = 300; // milliseconds before a failed GET is sent again

export class Problem extends Error {
  /** An error with a message for the user. A passing one is temporary: the user may try again. */
  constructor(message, { status, passing = false } = {}) {
    super(message);
    Object.assign(this, { status, passing });
  }
}

export async function request(path, body, { signal, base = "" } = {}) {
  const place = `antipodal-key ${new URL(base || ".", location.href).pathname}`;
  let again = !body; // once
  for (;;) {
    const headers = {};
    const key = sessionStorage.getItem(place) ?? sessionStorage.getItem("antipodal-key"); // set by the list of mounts
    if (key) headers.Authorization = `Bearer ${key}`;
    const isFile = body instanceof Blob;
    if (body) headers["Content-Type"] = isFile ? body.type : "application/json";
    let response;
    try {
      response = await fetch(base + path, {
        method: body ? "POST" : "GET",
        headers,
        body: isFile ? body : body && JSON.stringify(body),
        signal,
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      if (!again) throw new Problem("The service does not respond. Is it running?", { passing: true });
      again = false;
      await new Promise((resolve) => setTimeout(resolve, PAUSE));
      continue;
    }
    const answer = await response.json().catch((error) => {
      if (error.name === "AbortError") throw error;
      return {}; // perhaps the response of a proxy
    });
    if (response.ok) return answer;
    if (response.status !== 401) {
      const { status } = response;
      throw new Problem(answer.detail || answer.title || `The service returned status ${status}.`, { status, passing: status === 429 || status >= 500 });
    }
    if ((sessionStorage.getItem(place) ?? sessionStorage.getItem("antipodal-key")) !== key) continue; // another request has set a new key
    await promptForKey(place, key ? "The service rejected this key." : "This service requires an API key.");
  }
}

let asking = null;
function promptForKey(place, why) {
  asking ??= new Promise((resolve, reject) => {
    const dialog = $("key-dialog");
    $("key-why").textContent = why;
    $("key").value = "";
    dialog.returnValue = "";
    dialog.addEventListener("close", () => {
      asking = null;
      if (dialog.returnValue !== "use") return reject(new Problem("An API key is required.", { passing: true }));
      sessionStorage.setItem(place, $("key").value.trim());
      return resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

/** Return the other mounts of the service; none if it has a single model. */
export async function otherMounts() {
  try {
    const { mounts } = await request("v1/mounts");
    const own = location.pathname.split("/").at(-2);
    return mounts.filter(({ name }) => name !== own)
      .map((mount) => ({ ...mount, base: `../${encodeURIComponent(mount.name)}/` }));
  } catch (error) {
    if (error.status === 404) return [];
    throw error;
  }
}
