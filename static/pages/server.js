// Requests to the server's pages. A refusal carries the sentence to show.

const UNREACHABLE = "The server cannot be reached. Check your connection and try again.";

export class Refused extends Error {
  constructor(message, { code = "", fields = {}, unreachable = false } = {}) {
    super(message);
    this.code = code;
    this.fields = fields; // what is wrong with each input of a form, by its name
    this.unreachable = unreachable;
  }
}

/** Send a form as it is, and get JSON. */
export async function postForm(form, { submitter = null, fields = {} } = {}) {
  const data = new FormData(form, submitter);
  for (const [name, value] of Object.entries(fields)) data.set(name, value);
  const response = await reach(form.action, {
    method: "POST",
    body: data,
    headers: { Accept: "application/json" },
  });
  if (response.ok) return response.json();
  const answer = await response.json().catch(() => ({}));
  const message = answer.error?.message ?? "The server refused this. Reload the page and try again.";
  throw new Refused(message, { code: answer.error?.code, fields: answer.error?.fields });
}

/** The HTML of one of our pages. Whoever is not logged in any more is taken to the login. */
export async function getHtml(url) {
  const response = await reach(url, { headers: { Accept: "text/html" } });
  if (!response.ok) throw new Refused("This does not exist any more.", { code: String(response.status) });
  return response.text();
}

async function reach(url, options) {
  let response;
  try {
    response = await fetch(url, { credentials: "same-origin", ...options });
  } catch {
    throw new Refused(UNREACHABLE, { unreachable: true });
  }
  if (response.redirected && new URL(response.url).pathname.startsWith("/login/")) {
    toLogin();
    throw new Refused("You are logged out.");
  }
  if (response.status >= 502 && response.status <= 504 && !isJson(response)) {
    throw new Refused(UNREACHABLE, { unreachable: true });
  }
  return response;
}

const isJson = (response) => (response.headers.get("Content-Type") ?? "").startsWith("application/json");

export function toLogin() {
  location.assign(`/login/?next=${encodeURIComponent(location.pathname)}`);
}
