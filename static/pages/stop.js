// The Stop button. What the server says wins, by revision; a click shows at once and is taken back
// when the request fails before it was accepted.

export class StopControl {
  /** request() resolves when the cancel was accepted and rejects with the sentence to show. */
  constructor(main, { request, note }) {
    this.button = main.querySelector("#stop");
    this.progress = main.querySelector("#stopping");
    this.pending = main.dataset.cancellationPending === "true";
    this.revision = Number(main.dataset.cancellationRevision);
    this.active = !this.button.hidden;
    this.optimistic = false;
    this.request = request;
    this.note = note;
    main.querySelector("#stop-form").addEventListener("submit", (event) => this.#press(event));
    this.#show();
  }

  /** The server's projection; what is older than what we know is dropped. */
  take(pending, revision) {
    if (revision < this.revision) return;
    if (revision > this.revision) this.optimistic = false;
    this.pending = pending;
    this.revision = revision;
    this.#show();
  }

  setActive(active) {
    this.active = active;
    if (!active) this.optimistic = false;
    this.#show();
  }

  async #press(event) {
    event.preventDefault();
    if (this.pending || this.optimistic) return;
    this.optimistic = true;
    this.#show();
    try {
      await this.request();
      this.note("");
    } catch (refused) {
      this.note(refused.message);
    } finally {
      this.optimistic = false;
      this.#show();
    }
  }

  #show() {
    const stopping = this.pending || this.optimistic;
    const focused = document.activeElement === this.button;
    this.button.hidden = !this.active && !stopping;
    this.button.disabled = stopping;
    this.button.toggleAttribute("aria-busy", stopping);
    if (stopping) this.button.setAttribute("aria-busy", "true");
    const words = stopping ? "Stopping…" : "";
    if (this.progress.textContent !== words) this.progress.textContent = words;
    if (focused && this.button.hidden) document.getElementById("message").focus({ preventScroll: true });
  }
}
