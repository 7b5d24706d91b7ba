// The chat page: the list beside one conversation, and the way from one conversation to the next.

import { Conversation } from "./conversation.js";
import { setUpDialogs } from "./dialogs.js";
import { byId, parse } from "./dom.js";
import { getHtml } from "./server.js";
import { Sidebar } from "./sidebar.js";

const sidebar = new Sidebar(byId("sidebar"));
let conversation;
let wanted = 0;

function start() {
  const main = byId("main");
  conversation = new Conversation(main, open);
  sidebar.select(main.dataset.session);
  conversation.composer.focus();
}

/** Show another conversation: the page the server would have sent, without leaving this one. */
async function open(url, { replace = false, keep = false } = {}) {
  const ticket = ++wanted;
  let html;
  try {
    html = await getHtml(url);
  } catch {
    return location.assign(url);
  }
  const page = parse(html);
  const main = page.getElementById("main");
  if (ticket !== wanted) return;
  if (!main?.matches(".conversation")) return location.assign(url);
  conversation.close();
  byId("main").replaceWith(main);
  document.title = page.title;
  if (!keep) history[replace ? "replaceState" : "pushState"](null, "", url.replace("?gone", ""));
  start();
}

document.addEventListener("click", (event) => {
  if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const link = event.target.closest(".session-link, .new-chat, .sidebar .brand");
  if (!link) return;
  event.preventDefault();
  open(link.href);
});

addEventListener("popstate", () => open(location.pathname + location.search, { keep: true }));

setUpDialogs((kind, id) => {
  if (kind !== "delete") return;
  sidebar.remove(id);
  if (byId("main").dataset.session === id) open("/chat/", { replace: true });
});

start();
