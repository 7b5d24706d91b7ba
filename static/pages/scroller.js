// Follows the end of the conversation while the reader is there, and leaves a reader who is not alone.

const NEAR = 96; // pixels from the end that still count as being there

export class Scroller {
  constructor(log, jump) {
    this.log = log;
    this.jump = jump;
    this.atEnd = true;
    log.addEventListener("scroll", () => this.#look(), { passive: true });
    jump.addEventListener("click", () => this.toEnd());
    this.resizes = new ResizeObserver(() => this.keepUp());
    this.resizes.observe(log);
    this.resizes.observe(log.firstElementChild);
    this.toEnd();
  }

  close() {
    this.resizes.disconnect();
  }

  /** The content has grown: stay at the end if that is where the reader is. */
  keepUp() {
    if (this.atEnd) this.log.scrollTop = this.log.scrollHeight;
    this.jump.hidden = this.atEnd;
  }

  toEnd() {
    this.atEnd = true;
    this.keepUp();
  }

  #look() {
    const { scrollTop, scrollHeight, clientHeight } = this.log;
    this.atEnd = scrollHeight - scrollTop - clientHeight < NEAR;
    this.jump.hidden = this.atEnd;
  }
}
