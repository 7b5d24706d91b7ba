// Small things every module needs of the document.

export const byId = (id) => document.getElementById(id);

/** A copy of the one element in a <template>. */
export function fromTemplate(id) {
  return byId(id).content.firstElementChild.cloneNode(true);
}

/** A document from the server's own HTML. Scripts in it do not run. */
export function parse(html) {
  return new DOMParser().parseFromString(html, "text/html");
}

/** Say something to a screen reader once. */
export function announce(text) {
  byId("announcer").textContent = text;
}

/** A random UUID; crypto.randomUUID exists on secure origins only, and a private network may have none. */
export function uuid() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
}

/**
 * Make the children of `list` those of `fresh`, by their data-key. What did not change stays the same
 * node, so that focus, selection and unfolded cards survive.
 */
export function reconcile(list, fresh) {
  const known = new Map(Array.from(list.children, (child) => [child.dataset.key, child]));
  let place = list.firstElementChild;
  for (const child of Array.from(fresh.children)) {
    const old = known.get(child.dataset.key);
    const node = old ? merge(old, child) : child;
    if (place === old) place = node.nextElementSibling ?? null;
    if (!old) list.insertBefore(node, place);
    else if (node.nextElementSibling !== place) list.insertBefore(node, place);
    known.delete(child.dataset.key);
  }
  for (const gone of known.values()) gone.remove();
}

/** Bring one node up to date; returns the node that now stands in its place. */
function merge(old, fresh) {
  if (fresh.matches(".turn")) {
    Object.assign(old.dataset, fresh.dataset);
    reconcile(old, fresh);
    return old;
  }
  const unfolded = Array.from(old.querySelectorAll("details[open][data-key]"), (card) => card.dataset.key);
  // Each rendering has another token for the same form. It must not take away what somebody types.
  for (const token of old.querySelectorAll('[name="csrfmiddlewaretoken"]')) {
    const renewed = fresh.querySelector('[name="csrfmiddlewaretoken"]');
    if (renewed) token.setAttribute("value", renewed.value);
  }
  const bare = old.cloneNode(true);
  for (const card of bare.querySelectorAll("details[open]")) card.open = false;
  // What is wrong with an input was said here, not by the server.
  for (const place of bare.querySelectorAll("[data-error]")) {
    place.textContent = "";
    place.hidden = true;
  }
  for (const input of bare.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
  // The answer to a form that is being sent is shown in that form.
  for (const button of bare.querySelectorAll("form[data-send] button")) button.disabled = false;
  if (bare.isEqualNode(fresh)) return old;
  for (const card of fresh.querySelectorAll("details[data-key]")) card.open ||= unfolded.includes(card.dataset.key);
  old.replaceWith(fresh);
  return fresh;
}
