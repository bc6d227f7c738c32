// Parts of the page that came as HTML (dashboard/page/static_parts.py), put into the elements that Dash has made for them.
(function (ns) {
  "use strict";

  ns.fillParts = function () {
    /** @type {Map<string | undefined, HTMLTemplateElement>} */
    const parts = new Map();
    for (const template of document.querySelectorAll("template[data-part]")) {
      parts.set(/** @type {HTMLElement} */ (template).dataset.part, /** @type {HTMLTemplateElement} */ (template));
    }
    for (const [number, template] of parts) {
      document.querySelector(`[data-part="${number}"]:not(template)`)?.replaceChildren(template.content);
      template.remove();
    }
  };
})(window.nanscope);
