// The list of conversations: live, searched as one types, older ones on demand; a drawer on small screens.

import { byId, fromTemplate, parse } from "./dom.js";
import { getHtml, toLogin } from "./server.js";
import { LiveSocket } from "./socket.js";

const SEARCH_AFTER = 200;

export class Sidebar {
  constructor(element) {
    this.element = element;
    this.scroll = element.querySelector(".sessions-scroll");
    this.search = byId("search");
    this.search.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#load();
    });
    this.search.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.#load(), SEARCH_AFTER);
    });
    element.addEventListener("click", (event) => this.#click(event));
    document.addEventListener("click", (event) => {
      if (event.target.closest(".sidebar-open")) {
        event.preventDefault();
        this.#openDrawer();
      } else if (this.isDrawerOpen && !element.contains(event.target)) this.closeDrawer();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.isDrawerOpen) this.closeDrawer();
    });
    this.socket = new LiveSocket({
      address: () => "/ws/sessions/",
      onFrame: (frame) => this.#take(frame),
      // What changed before, since the page was made or while we were away, is not told to us.
      onOpen: () => this.#load(),
      onClose: (code) => {
        if (code === 4401) toLogin();
        return code === 4401;
      },
    });
  }

  get list() {
    return byId("sessions");
  }

  get isDrawerOpen() {
    return this.element.classList.contains("open");
  }

  row(id) {
    return this.list.querySelector(`[data-session="${CSS.escape(id)}"]`);
  }

  /** Mark the conversation that is open. */
  select(id) {
    this.current = id;
    this.#mark();
    this.closeDrawer();
  }

  remove(id) {
    this.row(id)?.remove();
    this.#showEmptiness();
  }

  closeDrawer() {
    if (!this.isDrawerOpen) return;
    this.element.classList.remove("open");
    byId("main").inert = false;
    document.querySelector(".sidebar-open")?.focus();
  }

  #openDrawer() {
    this.element.classList.add("open");
    byId("main").inert = true;
    this.element.querySelector(".sidebar-close").focus();
  }

  #mark() {
    for (const link of this.list.querySelectorAll("[aria-current]")) link.removeAttribute("aria-current");
    if (this.current) this.row(this.current)?.querySelector(".session-link").setAttribute("aria-current", "page");
  }

  #click(event) {
    if (event.target.closest(".sidebar-close")) {
      event.preventDefault();
      this.closeDrawer();
    } else if (event.target.closest("#older")) {
      event.preventDefault();
      this.#loadOlder(event.target.closest("#older"));
    }
  }

  #take(frame) {
    if (frame.type === "session.deleted") this.remove(frame.id);
    else if (frame.type === "session.summary") this.#takeSummary(frame);
  }

  #takeSummary({ id, title, status, updated_at }) {
    let row = this.row(id);
    if (row && row.dataset.updated > updated_at) return;
    if (!row) {
      if (this.search.value.trim()) return;
      row = fromTemplate("session-row");
      row.dataset.session = id;
      row.querySelector(".session-link").href = `/chat/${id}/`;
      for (const link of row.querySelectorAll("[data-dialog]")) link.href = `/chat/${id}/${link.dataset.dialog}/`;
    }
    row.dataset.status = status;
    row.dataset.updated = updated_at;
    const name = title || "New conversation";
    row.querySelector(".session-title").textContent = name;
    row.querySelector(".session-status").textContent = status === "idle" ? "" : `(${status})`;
    for (const link of row.querySelectorAll("[data-dialog]")) {
      link.setAttribute("aria-label", `${link.title} ${title || "conversation"}`);
    }
    if (id === this.current) row.querySelector(".session-link").setAttribute("aria-current", "page");
    this.#place(row);
    this.#showEmptiness();
  }

  /** Most recent first; a row that is in its place is not touched, so that it keeps the focus. */
  #place(row) {
    const older = Array.from(this.list.children).find(
      (other) => other !== row && other.dataset.updated < row.dataset.updated,
    );
    if (!row.isConnected || (older ?? null) !== row.nextElementSibling) this.list.insertBefore(row, older ?? null);
  }

  #showEmptiness() {
    this.element.querySelector(".sessions-empty").hidden = this.list.children.length > 0;
  }

  async #load() {
    const query = this.search.value.trim();
    const html = await this.#fetch(query ? `?q=${encodeURIComponent(query)}` : "");
    if (html === null || query !== this.search.value.trim()) return;
    this.scroll.replaceChildren(...parse(html).body.childNodes);
    this.#mark();
  }

  async #loadOlder(link) {
    const html = await this.#fetch(link.getAttribute("href"));
    if (html === null) return;
    const more = parse(html);
    const rows = Array.from(more.querySelectorAll(".session")).filter((row) => !this.row(row.dataset.session));
    this.list.append(...rows);
    const next = more.getElementById("older");
    if (next) link.replaceWith(next);
    else link.remove();
    rows[0]?.querySelector(".session-link").focus();
  }

  #fetch(query) {
    return getHtml(this.element.dataset.listUrl + query).catch(() => null);
  }
}
