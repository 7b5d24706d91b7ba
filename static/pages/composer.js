// The field for the next message. The text stays in it until the server has accepted it.

export class Composer {
  /** submit(text) resolves when the message is accepted and rejects with the sentence to show. */
  constructor(form, { submit, note }) {
    this.form = form;
    this.field = form.elements.text;
    this.button = form.querySelector(".send");
    this.note = note;
    this.hint = form.querySelector(".composer-note");
    this.usual = this.hint.textContent;
    this.limit = Number(this.field.dataset.limit);
    this.submit = submit;
    this.busy = false;
    form.addEventListener("submit", (event) => this.#send(event));
    this.field.addEventListener("input", () => this.#count());
    this.field.addEventListener("keydown", (event) => this.#key(event));
    this.#count();
  }

  focus() {
    // On a touch screen the focus would open the keyboard over what the reader came for.
    if (matchMedia("(hover: hover)").matches) this.field.focus({ preventScroll: true });
  }

  #key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.form.requestSubmit(this.button);
  }

  // Python counts characters, JavaScript UTF-16 units.
  #count() {
    const units = this.field.value.length;
    const length = units > this.limit / 2 ? Array.from(this.field.value).length : units;
    const over = length > this.limit;
    const near = length > this.limit * 0.8;
    this.hint.toggleAttribute("data-over", over);
    this.hint.toggleAttribute("data-count", near);
    if (over) this.hint.textContent = `Too long: ${format(length)} of ${format(this.limit)} characters`;
    else if (near) this.hint.textContent = `${format(length)} of ${format(this.limit)} characters`;
    else this.hint.textContent = this.usual;
    this.button.disabled = this.busy || over;
  }

  async #send(event) {
    event.preventDefault();
    const text = this.field.value;
    if (this.button.disabled || !text.trim()) return;
    this.busy = true;
    this.#count();
    try {
      await this.submit(text);
      // What was typed meanwhile is the next message.
      if (this.field.value === text) this.field.value = "";
      else if (this.field.value.startsWith(text)) this.field.value = this.field.value.slice(text.length).trimStart();
      this.note("");
    } catch (refused) {
      this.note(refused.message);
    } finally {
      this.busy = false;
      this.#count();
    }
  }
}

const format = (number) => number.toLocaleString("en");
