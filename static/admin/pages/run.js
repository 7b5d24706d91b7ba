// Updates the page of a run: the server renders the part that changes, and this replaces it.
// Open details, the focus and a selection stay.

const EVERY = 2000; // milliseconds

const region = document.getElementById("run-live");
const checkpoint = document.getElementById("run-checkpoint");

if (region && isLive()) schedule();

function isLive() {
  return region.querySelector("[data-live]")?.dataset.live === "yes";
}

function schedule() {
  setTimeout(follow, EVERY);
}

async function follow() {
  if (document.hidden || isBusy()) return schedule();
  try {
    const html = await fetchPart(region.dataset.url);
    if (html === null) return tell("No longer live: reload the page.");
    replace(region, html);
  } catch {
    tell("Not live at the moment: the server does not answer.");
    return schedule();
  }
  if (isLive()) return schedule();
  // The run has ended, so its checkpoint does not change any more.
  const html = await fetchPart(checkpoint.dataset.url).catch(() => null);
  if (html !== null) replace(checkpoint, html);
}

/** Whether a button is pressed, or text is selected. */
function isBusy() {
  const selection = document.getSelection();
  return region.matches(":active") || (!selection.isCollapsed && region.contains(selection.anchorNode));
}

/** The HTML at `url`; null when the reader may not see it any more. */
async function fetchPart(url) {
  const response = await fetch(url);
  if (response.redirected || response.status === 403 || response.status === 404) return null;
  if (!response.ok) throw new Error(response.status);
  return response.text();
}

function replace(element, html) {
  const open = [...element.querySelectorAll("details[open][data-key]")].map((details) => details.dataset.key);
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const scrolled = [...element.querySelectorAll(".scrolls")].map((box) => box.scrollLeft);
  element.replaceChildren(document.createRange().createContextualFragment(html));
  for (const key of open) find(element, key)?.setAttribute("open", "");
  element.querySelectorAll(".scrolls").forEach((box, index) => { box.scrollLeft = scrolled[index] ?? 0; });
  if (focused) find(element, focused)?.focus({ preventScroll: true });
}

function find(element, key) {
  return element.querySelector(`[data-key="${CSS.escape(key)}"]`);
}

function tell(words) {
  const status = region.querySelector('[role="status"]');
  if (status) status.textContent = words;
}
