// Updates the dashboard: asks for its markup and changes the differing nodes in place, so focus, open tables and
// scroll positions stay. It does not ask while the page is hidden or paused.

const EVERY = 5_000;
const AFTER_FAILURE = 30_000;

const dashboard = document.getElementById("dashboard");
if (dashboard) start();

function start() {
  const fragment = dashboard.querySelector("[data-fragment]");
  const news = dashboard.querySelector("[role=status]");
  const state = dashboard.querySelector("[data-state]");
  const pause = dashboard.querySelector("[data-pause]");
  let told = fragment.firstElementChild.dataset.news;
  let timer = 0;
  let asking = false;

  async function update() {
    if (asking || document.hidden || isPaused()) return;
    asking = true;
    clearTimeout(timer);
    let next = EVERY;
    try {
      const answer = await fetch(dashboard.dataset.src, { redirect: "manual", signal: AbortSignal.timeout(AFTER_FAILURE) });
      if (answer.type === "opaqueredirect" || answer.status === 403) {
        next = 0;
        state.textContent = "You are logged out. Load the page again to log in.";
      } else if (answer.ok) {
        take(await answer.text());
      } else {
        throw new Error(answer.statusText);
      }
    } catch {
      next = AFTER_FAILURE;
      state.textContent = "The server does not answer; trying again. The figures are those of before.";
    }
    asking = false;
    if (next) timer = setTimeout(update, next);
  }

  function take(html) {
    const fresh = new DOMParser().parseFromString(html, "text/html").body.firstElementChild;
    morph(fragment.firstElementChild, fresh);
    state.textContent = `Updated at ${new Date().toLocaleTimeString()}.`;
    if (fresh.dataset.news !== told) news.textContent = told = fresh.dataset.news;
  }

  const isPaused = () => pause.getAttribute("aria-pressed") === "true";

  pause.addEventListener("click", () => {
    pause.setAttribute("aria-pressed", String(!isPaused()));
    clearTimeout(timer);
    if (isPaused()) state.textContent = "Paused.";
    else update();
  });
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    update();
  });
  pause.parentElement.hidden = false;
  for (const scroller of fragment.querySelectorAll("[data-latest-last]")) scroller.scrollLeft = scroller.scrollWidth;
  timer = setTimeout(update, EVERY);
}

/**
 * Make `shown` like `fresh`, node by node; the markup has the same parts in the same order each time.
 * An open <details> stays open.
 */
function morph(shown, fresh) {
  if (shown.isEqualNode(fresh)) return;
  if (shown.nodeName !== fresh.nodeName) return void shown.replaceWith(fresh);
  if (shown.nodeType !== Node.ELEMENT_NODE) return void (shown.nodeValue = fresh.nodeValue);
  for (const { name, value } of fresh.attributes) if (shown.getAttribute(name) !== value) shown.setAttribute(name, value);
  for (const { name } of [...shown.attributes]) if (!fresh.hasAttribute(name) && name !== "open") shown.removeAttribute(name);
  const [olds, news] = [[...shown.childNodes], [...fresh.childNodes]];
  news.forEach((node, place) => (olds[place] ? morph(olds[place], node) : shown.append(node)));
  for (const rest of olds.slice(news.length)) rest.remove();
}
