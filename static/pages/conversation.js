// One conversation on the screen: its socket, its cursor, and what the frames mean.

import { Composer } from "./composer.js";
import { announce, byId, fromTemplate, reconcile, uuid } from "./dom.js";
import { Scroller } from "./scroller.js";
import { getHtml, postForm, toLogin } from "./server.js";
import { CLOSED, LiveSocket } from "./socket.js";
import { StopControl } from "./stop.js";
import { parseTurn, parseTurns, Transcript } from "./transcript.js";

const ACTIVE = ["queued", "running", "waiting"];
const RENDER_AFTER = ["message.completed", "message.changed", "run.waiting", "run.answered"];
const TERMINAL = { "run.completed": "", "run.failed": "The turn failed.", "run.cancelled": "Stopped.", "run.interrupted": "Interrupted." };
const CONNECTION = { live: "Live", reconnecting: "Reconnecting…", offline: "Offline" };
const ACCEPTED_WITHIN = 5_000;
const RENDER_EVERY = 1_000;

export class Conversation {
  /** open(url, {replace, gone}) shows another page in place of this one. */
  constructor(main, open) {
    this.main = main;
    this.open = open;
    this.id = main.dataset.session;
    this.composer = new Composer(byId("composer"), {
      submit: (text) => (this.id ? this.#startTurn(text) : this.#startSession()),
      note: (sentence) => this.note(sentence),
    });
    this.scroller = new Scroller(byId("log"), byId("jump"));
    this.transcript = new Transcript(byId("turns"), {
      onDraw: () => this.scroller.keepUp(),
      onParagraph: (run) => this.#renderSoon(run),
    });
    if (!this.id) return;

    this.cursor = { run: main.dataset.run, seq: Number(main.dataset.seq || 0) };
    this.gaps = 0; // in a row
    this.updatedAt = main.dataset.updated;
    this.rendering = new Map(); // run → "busy" | "again"
    this.unsent = null; // the turn that was sent and not answered: {request_id, text, resolve, reject}
    this.stop = new StopControl(main, { request: () => this.#cancel(), note: (sentence) => this.note(sentence) });
    main.addEventListener("submit", (event) => this.#submitForm(event));
    this.socket = new LiveSocket({
      address: () => this.#address(),
      onFrame: (frame) => this.#take(frame),
      onOpen: () => this.#sendTurn(),
      onState: (state) => this.#showConnection(state),
      onClose: (code) => this.#closed(code),
      onRefused: () => getHtml("/chat/list/").catch(() => {}), // takes us to the login if that has ended
    });
  }

  close() {
    clearTimeout(this.soon);
    this.socket?.close();
    this.scroller.close();
  }

  /** One sentence above the composer; "" takes it away. */
  note(sentence) {
    const notes = byId("notes");
    notes.replaceChildren();
    if (!sentence) return;
    const note = document.createElement("p");
    note.className = "notice error";
    note.setAttribute("role", "alert");
    note.textContent = sentence;
    notes.append(note);
  }

  #address() {
    const { run, seq } = this.cursor;
    return `/ws/sessions/${this.id}/${run ? `?run=${run}&after=${seq}` : ""}`;
  }

  #showConnection(state) {
    const badge = byId("connection");
    badge.hidden = false;
    badge.dataset.state = state;
    const words = badge.firstElementChild;
    if (words.textContent !== CONNECTION[state]) words.textContent = CONNECTION[state];
  }

  #closed(code) {
    if (code === 4401) toLogin();
    else if (code === 4404) this.open("/chat/?gone", { replace: true });
    else return this.isGone === true;
    return true;
  }

  // Frames

  #take(frame) {
    if (frame.type === "run.event") this.#takeEvent(frame.event);
    else if (frame.type === "session.state_changed") this.#takeSession(frame.session);
    else if (frame.type === "session.cancellation_changed") {
      this.stop.take(frame.cancellation_pending, frame.cancellation_revision);
    } else if (frame.type === "tool.effect_changed") this.#render(frame.run);
    else if (frame.type === "session.deleted") {
      this.isGone = true;
      this.open("/chat/?gone", { replace: true });
    } else if (frame.type === "error" && frame.request_id === null) this.#cursorRefused();
  }

  #takeEvent(event) {
    const { run, seq } = this.cursor;
    const isNext = event.run === run ? event.seq === seq + 1 : event.seq === 1;
    if (!isNext) {
      const isKnown = event.run === run ? event.seq <= seq : this.transcript.turn(event.run) !== null;
      if (!isKnown) this.#repairGap();
      return;
    }
    this.gaps = 0;
    this.cursor = { run: event.run, seq: event.seq };
    this.transcript.apply(event);
    if (event.type === "run.queued") this.#dropQueued(event.run);
    if (event.type === "message.completed" && event.data.text && this.transcript.isAnswer(event.data.message)) announce(event.data.text);
    if (event.type === "run.waiting") announce("The assistant asks you something.");
    if (event.type === "run.started" && (event.data.resumes || event.data.retries)) this.renderAllAtEnd = true;
    if (event.type in TERMINAL) {
      if (TERMINAL[event.type]) announce(TERMINAL[event.type]);
      if (this.renderAllAtEnd) this.#renderAll();
      else this.#render(event.run);
      this.renderAllAtEnd = false;
    } else if (RENDER_AFTER.includes(event.type)) this.#render(event.run);
  }

  #takeSession(session) {
    if (session.cancellation_revision < this.stop.revision || session.updated_at < this.updatedAt) return;
    this.updatedAt = session.updated_at;
    this.stop.take(session.cancellation_pending, session.cancellation_revision);
    this.stop.setActive(ACTIVE.includes(session.status));
    this.main.dataset.status = session.status;
    // Somebody has decided, here or elsewhere, what becomes of the turn that asks for it.
    const asking = session.status !== "interrupted" && this.main.querySelector('.notice[data-mark="interrupted"]');
    if (asking) this.#render(asking.closest(".turn").dataset.run);
    // What a stopped turn has left at work may have ended. An operator's stop says afterwards what it has left.
    const stopped = '.mark[data-mark="straggling"], .turn:last-child .mark[data-mark="stopped"]';
    for (const mark of this.main.querySelectorAll(stopped)) this.#render(mark.closest(".turn").dataset.run);
    const title = session.title || "New conversation";
    this.main.querySelector(".conversation-title").textContent = title;
    document.title = `${title} · Turnkeeper`;
    byId("figures").textContent = figures(session.statistics);
    this.#showQueue(session);
    // The first turn may have begun between the first paint and the socket. If it waits or has ended, no event
    // tells of it any more.
    if (!this.cursor.run && session.statistics.runs > session.queued.length) this.#renderAll();
  }

  /** Events are missing: come back with the cursor, and if that does not help, load the page anew. */
  #repairGap() {
    this.gaps += 1;
    if (this.gaps < 3) this.socket.reconnect();
    else this.#cursorRefused();
  }

  #cursorRefused() {
    this.isGone = true; // keeps this socket closed; the page that replaces this one opens its own
    this.open(location.pathname, { replace: true });
  }

  // The line behind the active turn

  #showQueue({ queued, active_run }) {
    const fresh = document.createElement("ol");
    for (const turn of queued) {
      if (this.transcript.turn(turn.run)) continue;
      const item = fromTemplate("queued-template");
      item.dataset.key = item.dataset.run = turn.run;
      item.querySelector(".text").textContent = turn.input;
      const form = item.querySelector("form");
      form.setAttribute("action", `/chat/${this.id}/runs/${turn.run}/cancel/`);
      form.hidden = !active_run && turn === queued[0] && this.main.dataset.status === "queued";
      fresh.append(item);
    }
    reconcile(byId("queue"), fresh);
    this.scroller.keepUp();
  }

  #dropQueued(run) {
    byId("queue").querySelector(`[data-run="${CSS.escape(run)}"]`)?.remove();
  }

  // The server's rendering of what is complete

  async #render(run) {
    if (this.rendering.has(run)) return void this.rendering.set(run, "again");
    this.rendering.set(run, "busy");
    try {
      const fresh = parseTurn(await getHtml(`/chat/${this.id}/messages/?run=${run}`));
      const seen = Number(fresh.dataset.seq);
      this.transcript.draw();
      const whole = this.cursor.run !== run || this.cursor.seq <= seen;
      if (whole && this.cursor.run === run) this.cursor.seq = seen;
      this.transcript.take(fresh, { whole });
    } catch (refused) {
      if (refused.code === "404") this.transcript.forget(run);
      // Otherwise the plain text stays; the next rendering or reload replaces it.
    }
    const again = this.rendering.get(run) === "again";
    this.rendering.delete(run);
    if (again) this.#render(run);
  }

  /** Paragraphs of an answer on its way are rendered too, but no more often than a reader needs. */
  #renderSoon(run) {
    this.soon ||= setTimeout(() => {
      this.soon = 0;
      this.#render(run);
    }, RENDER_EVERY);
  }

  async #renderAll() {
    try {
      const fresh = parseTurns(await getHtml(`/chat/${this.id}/messages/${location.search}`));
      const { run, seq } = fresh.dataset;
      if (run === this.cursor.run && Number(seq) < this.cursor.seq) return;
      const isFirst = !this.cursor.run && run;
      this.cursor = { run, seq: Number(seq) };
      this.transcript.takeAll(fresh);
      // Events that came while no turn was known were not shown. Behind this cursor they come again.
      if (isFirst) this.socket.reconnect();
    } catch {
      // The turns on the screen stay as they are.
    }
  }

  // Commands

  async #startSession() {
    const { url } = await postForm(byId("composer"));
    await this.open(url);
  }

  #startTurn(text) {
    return new Promise((resolve, reject) => {
      this.unsent = { request_id: uuid(), text, resolve, reject };
      this.#sendTurn();
    });
  }

  /** Send what is unanswered, with its first request id, however often it takes: it is one turn. */
  async #sendTurn() {
    const turn = this.unsent;
    if (!turn) return;
    try {
      if (this.socket.isOpen) await this.#sendTurnOnSocket(turn);
      else await postForm(byId("composer"), { fields: { text: turn.text, request_id: turn.request_id } });
      turn.resolve();
    } catch (refused) {
      if (refused.code === CLOSED || refused.code === "unavailable" || refused.unreachable) {
        if (this.unsent === turn) this.note("Not sent yet. It will be sent when the connection is back.");
        return;
      }
      turn.reject(refused);
    }
    if (this.unsent === turn) this.unsent = null;
  }

  #sendTurnOnSocket({ request_id, text }) {
    return this.socket.request({ type: "turn.start", request_id, input: text, multitask: "enqueue" });
  }

  /** Ask for a cancel over the socket, over HTTP when the socket gives no sign of acceptance. */
  async #cancel() {
    const before = this.stop.revision;
    const accepted = () => this.stop.revision > before;
    if (this.socket.isOpen) {
      const asked = this.socket.request({ type: "agent.cancel", request_id: uuid(), session_id: this.id });
      const answer = await Promise.race([
        asked.then(() => ({}), (refused) => refused),
        new Promise((resolve) => setTimeout(resolve, ACCEPTED_WITHIN, { code: CLOSED })),
      ]);
      if (!answer.code) return;
      if (answer.cancellation) throw new Error(`${answer.message} You can press Stop again.`);
      if (answer.code !== CLOSED) throw new Error(`The turn was not stopped. ${answer.message}`);
      if (accepted()) return;
    }
    try {
      await postForm(byId("stop-form"));
    } catch (refused) {
      if (!accepted()) throw new Error(`The turn was not stopped. ${refused.message}`);
    }
  }

  /** The small forms: answer, resume, retry, dismiss, remove from the line. */
  async #submitForm(event) {
    const form = event.target;
    if (!form.matches("[data-send]")) return;
    event.preventDefault();
    const buttons = Array.from(form.querySelectorAll("button"));
    markFields(form);
    const sending = postForm(form, { submitter: event.submitter });
    for (const button of buttons) button.disabled = true;
    try {
      await sending;
      this.note("");
      if (!this.socket.isOpen) await this.open(location.pathname, { replace: true });
    } catch (refused) {
      const isMarked = markFields(form, refused.fields);
      this.note(isMarked ? "" : refused.message);
      for (const button of buttons) button.disabled = false;
      if (isMarked) form.querySelector('[aria-invalid="true"]')?.focus();
    }
  }
}

/** Say beside each input of a form what is wrong with it; whether there was anything to say. */
function markFields(form, errors = {}) {
  for (const place of form.querySelectorAll("[data-error]")) {
    const said = errors[place.dataset.error] ?? "";
    place.textContent = said;
    place.hidden = !said;
    const input = form.elements.namedItem(place.dataset.error);
    if (!(input instanceof HTMLElement)) continue;
    if (said) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  }
  return Object.keys(errors).length > 0;
}

/** The same words as the server's figure: tokens in and out together. */
function figures({ input_tokens, output_tokens, tokens_estimated }) {
  if (input_tokens === null && output_tokens === null) return "";
  const sum = (input_tokens ?? 0) + (output_tokens ?? 0);
  return `${tokens_estimated ? "about " : ""}${sum.toLocaleString("en")} tokens`;
}
