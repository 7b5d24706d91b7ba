// A WebSocket that comes back. It knows nothing of what its frames mean, except request_id.

const LONGEST_DELAY = 15_000;
const LEAVING = 1012; // the server restarts; it is back in a moment
const PING_EVERY = 25_000;
const ANSWER_WITHIN = 10_000;

export const CLOSED = "closed"; // the code of a request whose answer was lost with its connection

export class LiveSocket {
  /**
   * address: () => path with the cursor of this moment.
   * onFrame(frame); onState("live" | "reconnecting" | "offline"); onOpen();
   * onClose(code): true when the page has dealt with it and the socket shall stay closed.
   * onRefused(): the handshake failed repeatedly; perhaps the login has ended.
   */
  constructor({ address, onFrame, onState = () => {}, onOpen = () => {}, onClose = () => false, onRefused = () => {} }) {
    Object.assign(this, { address, onFrame, onState, onOpen, onClose, onRefused });
    this.waiting = new Map(); // request_id → {resolve, reject}
    this.failures = 0;
    this.wanted = true;
    this.wake = () => this.#wakeUp();
    addEventListener("online", this.wake);
    addEventListener("offline", this.wake);
    document.addEventListener("visibilitychange", this.wake);
    this.#connect();
  }

  get isOpen() {
    return this.socket?.readyState === WebSocket.OPEN;
  }

  send(frame) {
    if (this.isOpen) this.socket.send(JSON.stringify(frame));
    return this.isOpen;
  }

  /** Send and await the frame that answers; rejects with the error frame, or {code: CLOSED}. */
  request(frame) {
    return new Promise((resolve, reject) => {
      this.waiting.set(frame.request_id, { resolve, reject });
      if (!this.send(frame)) this.#settle(frame.request_id, "reject", { code: CLOSED });
    });
  }

  /** Drop the connection and open a new one with the cursor of this moment. */
  reconnect() {
    this.#drop();
    this.#connect();
  }

  close() {
    this.wanted = false;
    removeEventListener("online", this.wake);
    removeEventListener("offline", this.wake);
    document.removeEventListener("visibilitychange", this.wake);
    this.#drop();
  }

  #connect() {
    clearTimeout(this.timer);
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}${this.address()}`);
    this.socket = socket;
    let opened = false;
    socket.onopen = () => {
      opened = true;
      this.onState("live");
      this.#keepAlive();
      this.onOpen();
    };
    socket.onmessage = ({ data }) => {
      this.failures = 0;
      clearTimeout(this.silence);
      this.#receive(JSON.parse(data));
    };
    socket.onclose = ({ code }) => this.#closed(code, opened);
  }

  #receive(frame) {
    if (frame.type === "pong") return;
    if (this.waiting.has(frame.request_id) && (frame.type === "response" || frame.type === "error")) {
      this.#settle(frame.request_id, frame.type === "error" ? "reject" : "resolve", frame.result ?? frame);
    } else {
      this.onFrame(frame);
    }
  }

  #settle(id, how, value) {
    this.waiting.get(id)?.[how](value);
    this.waiting.delete(id);
  }

  #closed(code, opened) {
    this.#drop();
    if (!this.wanted || this.onClose(code)) return;
    this.failures += 1;
    if (!opened && this.failures >= 2) this.onRefused();
    this.onState(navigator.onLine ? "reconnecting" : "offline");
    const step = code === LEAVING ? 500 : Math.min(LONGEST_DELAY, 1000 * 2 ** (this.failures - 1));
    this.timer = setTimeout(() => this.#connect(), step * (0.6 + 0.4 * Math.random()));
  }

  #drop() {
    clearTimeout(this.timer);
    clearTimeout(this.silence);
    clearInterval(this.pings);
    const socket = this.socket;
    this.socket = null;
    if (socket) {
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close();
    }
    for (const id of Array.from(this.waiting.keys())) this.#settle(id, "reject", { code: CLOSED });
  }

  #keepAlive() {
    clearInterval(this.pings);
    this.pings = setInterval(() => {
      if (!this.send({ type: "ping" })) return;
      clearTimeout(this.silence);
      this.silence = setTimeout(() => this.#closed(0, true), ANSWER_WITHIN);
    }, PING_EVERY);
  }

  #wakeUp() {
    if (this.isOpen || !this.wanted) {
      if (!navigator.onLine && this.isOpen) this.#closed(0, true);
      return;
    }
    this.onState(navigator.onLine ? "reconnecting" : "offline");
    const idle = this.socket?.readyState !== WebSocket.CONNECTING;
    if (navigator.onLine && document.visibilityState === "visible" && idle) this.reconnect();
  }
}
