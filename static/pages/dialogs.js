// Rename and delete ask in a dialog; without a script each has a page of its own.

import { byId } from "./dom.js";
import { postForm } from "./server.js";

/** done(kind, session id) is called after the server has done it. */
export function setUpDialogs(done) {
  const ask = (kind, url, title) => {
    const dialog = byId(`${kind}-dialog`);
    const form = dialog.querySelector("form");
    form.action = url;
    form.querySelector(".notice").hidden = true;
    if (kind === "rename") form.elements.title.value = title;
    else form.querySelector(".dialog-title").textContent = title;
    dialog.showModal();
    if (kind === "rename") form.elements.title.select();
    else form.querySelector("[data-close]").focus();
  };

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-dialog]");
    if (link) {
      event.preventDefault();
      ask(link.dataset.dialog, link.href, link.closest(".session").querySelector(".session-title").textContent);
    } else if (event.target.matches("[data-close]") || event.target.matches("dialog")) {
      event.target.closest("dialog").close();
    }
  });

  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (form.matches("form[data-dialog]")) {
      event.preventDefault();
      ask(form.dataset.dialog, form.action, document.querySelector(".conversation-title").textContent);
    } else if (form.matches("[data-dialog-form]")) {
      event.preventDefault();
      const dialog = form.closest("dialog");
      try {
        await postForm(form, { submitter: event.submitter });
        dialog.close();
        done(dialog.id.replace("-dialog", ""), new URL(form.action).pathname.split("/")[2]);
      } catch (refused) {
        const notice = form.querySelector(".notice");
        notice.textContent = refused.message;
        notice.hidden = false;
      }
    }
  });
}
