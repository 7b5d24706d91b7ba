// The turns on the screen. Events of the log become nodes; model text is only ever a text node here.
// The server's own rendering (Markdown, endings, forms) replaces it as soon as a piece is complete.

import { fromTemplate, parse, reconcile } from "./dom.js";

const TOOL_STATES = { completed: "Done", failed: "Failed", cancelled: "Stopped" };

export class Transcript {
  /** onDraw(): the screen has changed. onParagraph(run): there is more than the last paragraph to render. */
  constructor(list, { onDraw, onParagraph }) {
    this.list = list;
    this.onDraw = onDraw;
    this.onParagraph = onParagraph;
    this.forgotten = new Set(); // runs whose turns were taken back; a rendering may still be on its way
    this.undrawn = new Map(); // message id → {run, text} that came since the last frame
    this.frame = 0;
  }

  turn(run) {
    return this.list.querySelector(`:scope > [data-run="${CSS.escape(run)}"]`);
  }

  message(id) {
    return this.list.querySelector(`[data-message="${CSS.escape(id)}"]`);
  }

  isAnswer(id) {
    return this.message(id)?.dataset.role === "assistant" && this.message(id).dataset.audience !== "work";
  }

  apply({ run, type, data }) {
    if (type === "message.delta") return this.#later(run, data);
    this.draw();
    HANDLERS[type]?.call(this, run, data);
    this.onDraw();
  }

  /** Put on the screen what has come since the last frame. */
  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    if (!this.undrawn.size) return;
    for (const [id, { run, text }] of this.undrawn) {
      const tail = this.ensureMessage(run, id, "assistant").querySelector(".plain");
      if (!tail) continue; // it is complete, and rendered
      if (tail.lastChild) tail.lastChild.appendData(text);
      else tail.append(text);
      if (/\n\s*\n/.test(tail.textContent)) this.onParagraph(run);
    }
    this.undrawn.clear();
    this.onDraw();
  }

  /** Take the server's rendering of one turn. `whole` false: something newer is on the screen, take finished texts only. */
  take(fresh, { whole }) {
    this.draw();
    if (this.forgotten.has(fresh.dataset.run)) return;
    const shown = this.turn(fresh.dataset.run);
    if (!shown) {
      this.list.append(fresh);
    } else if (whole) {
      const holder = document.createElement("ol");
      const wanted = document.createElement("ol");
      shown.replaceWith(holder);
      holder.append(shown);
      wanted.append(fresh);
      reconcile(holder, wanted);
      holder.replaceWith(holder.firstElementChild);
    } else {
      for (const message of fresh.querySelectorAll(".message")) this.#takeText(message);
    }
    this.onDraw();
  }

  takeAll(fresh) {
    this.draw();
    for (const turn of fresh.querySelectorAll(".turn")) if (this.forgotten.has(turn.dataset.run)) turn.remove();
    reconcile(this.list, fresh);
    this.onDraw();
  }

  forget(run) {
    this.forgotten.add(run);
    this.turn(run)?.remove();
  }

  ensureTurn(run, status) {
    let turn = this.turn(run);
    if (!turn) {
      turn = fromTemplate("turn-template");
      turn.dataset.key = turn.dataset.run = run;
      turn.dataset.status = status;
      this.list.append(turn);
    }
    return turn;
  }

  ensureMessage(run, id, role) {
    let message = this.message(id);
    if (!message) {
      message = fromTemplate("message-template");
      message.dataset.key = `message-${id}`;
      message.dataset.message = id;
      message.dataset.role = role;
      message.dataset.status = "streaming";
      message.querySelector("h3").textContent = role === "user" ? "You" : "Assistant";
      if (role !== "user") message.querySelector(".text").replaceWith(fromTemplate("text-template"));
      this.ensureTurn(run, "running").querySelector(".outcome").before(message);
    }
    return message;
  }

  call(id) {
    return this.list.querySelector(`[data-call="${CSS.escape(id)}"]`);
  }

  endTurn(run, status) {
    this.ensureTurn(run, status).dataset.status = status;
  }

  endCall(data, status, parts) {
    const card = this.call(data.tool_call);
    if (!card) return;
    card.dataset.status = status;
    write(card, { state: TOOL_STATES[status], ...parts });
  }

  /** The rendered text of a message; of one on its way the paragraphs that are whole. */
  #takeText(fresh) {
    const shown = this.message(fresh.dataset.message)?.querySelector(".text");
    if (!shown) return;
    if (fresh.dataset.status !== "streaming") return void shown.replaceWith(fresh.querySelector(".text"));
    const prose = shown.querySelector("[data-length]");
    const more = fresh.querySelector("[data-length]");
    const gained = Number(more.dataset.length) - Number(prose?.dataset.length ?? Infinity);
    if (gained <= 0 || Number.isNaN(gained)) return;
    const tail = shown.querySelector(".plain");
    prose.replaceWith(more);
    tail.textContent = tail.textContent.slice(gained);
  }

  #later(run, { message, text }) {
    const waiting = this.undrawn.get(message);
    if (waiting) waiting.text += text;
    else this.undrawn.set(message, { run, text });
    // A hidden tab gets no frames, and must not hoard text until it is looked at.
    if (document.hidden) this.draw();
    else this.frame ||= requestAnimationFrame(() => this.draw());
  }
}

const HANDLERS = {
  "run.queued"(run, data) {
    const turn = this.ensureTurn(run, "queued");
    if (!data.input || this.message(data.message)) return;
    const message = this.ensureMessage(run, data.message, "user");
    message.dataset.status = "complete";
    message.querySelector(".plain").textContent = data.input;
    turn.prepend(message);
  },
  "run.started"(run, data) {
    this.ensureTurn(run, "running").dataset.status = "running";
    if (data.retries) this.forget(data.retries);
  },
  "message.started"(run, data) {
    if (data.role === "assistant") this.ensureMessage(run, data.message, data.role).dataset.audience = data.audience;
  },
  "message.changed"(run, data) {
    const message = this.message(data.message);
    if (message && data.audience) message.dataset.audience = data.audience;
  },
  "message.completed"(run, data) {
    if (data.role !== "assistant") return;
    const message = this.ensureMessage(run, data.message, data.role);
    message.dataset.status = data.status;
    // The words are final; until the server has rendered them the rest stands here as it is.
    const tail = message.querySelector(".plain");
    const length = Number(message.querySelector("[data-length]")?.dataset.length ?? 0);
    if (tail) tail.textContent = data.text.slice(length);
  },
  "tool.started"(run, data) {
    if (this.call(data.tool_call)) return;
    const card = fromTemplate("tool-template");
    card.dataset.key = `call-${data.tool_call}`;
    card.dataset.call = data.tool_call;
    card.dataset.status = "running";
    write(card, { name: data.name, brief: oneLine(data.args), state: "Running", args: pretty(data.args) });
    this.ensureMessage(run, data.message, "assistant").querySelector(".tools").append(card);
  },
  "tool.progress"(run, data) {
    this.call(data.tool_call)?.querySelector('[data-part="progress"]').append(data.text);
  },
  "tool.completed"(run, data) {
    this.endCall(data, "completed", { result: pretty(data.result) });
  },
  "tool.failed"(run, data) {
    this.endCall(data, "failed", { error: pretty(data.error) });
  },
  "tool.cancelled"(run, data) {
    this.endCall(data, "cancelled", {});
    const card = this.call(data.tool_call);
    if (card && data.effect) card.dataset.effect = data.effect;
  },
  "run.waiting"(run) {
    this.endTurn(run, "waiting");
  },
  "run.completed"(run) {
    this.endTurn(run, "completed");
  },
  "run.failed"(run) {
    this.endTurn(run, "failed");
  },
  "run.cancelled"(run) {
    this.endTurn(run, "cancelled");
  },
  "run.interrupted"(run) {
    this.endTurn(run, "interrupted");
  },
};

/** The elements the server rendered for `?run=` or for the whole list. */
export const parseTurn = (html) => parse(html).querySelector(".turn");
export const parseTurns = (html) => parse(html).querySelector(".turns");

function write(card, parts) {
  for (const [name, text] of Object.entries(parts)) card.querySelector(`[data-part="${name}"]`).textContent = text;
}

function pretty(value) {
  return typeof value === "string" ? value : JSON.stringify(value ?? "", null, 2);
}

function oneLine(args) {
  const text = Object.entries(args ?? {})
    .map(([key, value]) => `${key}: ${typeof value === "string" ? value : JSON.stringify(value)}`)
    .join(", ");
  return text.length > 80 ? `${text.slice(0, 79)}…` : text;
}
