// Shows the OpenAPI description. Calls made from here carry the browser's login and its CSRF token.
"use strict";

const place = document.getElementById("description");
const { schema, csrf } = place.dataset;

SwaggerUIBundle({
  url: schema,
  domNode: place,
  deepLinking: true,
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
  requestInterceptor: (request) => {
    const isOurs = new URL(request.url, location.href).origin === location.origin;
    if (csrf && isOurs && !request.loadSpec) {
      request.headers["X-CSRFToken"] = csrf;
    }
    return request;
  },
});
