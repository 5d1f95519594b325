// The session: what the token allows, and the form that asks for one.

import { me, signIn } from "../data/api.js";
import { fill, h } from "../show/dom.js";
import { state } from "./state.js";

/** What `/v1/me` answered. */
export const session = { allow: [], scope: [], features: {}, limits: {}, label: "", token: "" };

export const may = (right) => session.allow.includes(right);
/** Whether the page may change something: the token allows it, and the present is shown. */
export const mayWrite = () => may("write") && !state.at;
/** Whether old values are kept, and the token may read them. */
export const mayLookBack = () => may("history") && Boolean(session.features.history_seconds);
export const mayUndo = () => may("write") && mayLookBack();

/** Take the token out of the address, so that it is neither seen nor sent on, and exchange it for a cookie. */
export async function useTokenOfAddress() {
  const found = /^#token=([\w-]+)/.exec(location.hash);
  if (!found) return;
  history.replaceState(null, "", location.pathname);
  await signIn(found[1]);
}

export async function loadSession() {
  Object.assign(session, await me());
}

/** Show the form that asks for a token, and wait until one is accepted. */
export function askForToken(root) {
  return new Promise((resolve) => {
    const note = h("p", { class: "field-error", role: "alert", id: "token-error" });
    const field = h("input", {
      id: "token",
      type: "password",
      autocomplete: "off",
      spellcheck: "false",
      required: true,
      "aria-describedby": "token-error",
      placeholder: "hold_…",
    });
    const submit = async (event) => {
      event.preventDefault();
      try {
        await signIn(field.value.trim());
        await loadSession();
        resolve();
      } catch (error) {
        note.textContent = error.message;
        field.select();
      }
    };
    fill(
      root,
      h(
        "main",
        { class: "sign-in" },
        h("h1", {}, "holdall"),
        h("p", {}, "This store is protected. Paste a token to look at what it allows."),
        h(
          "form",
          { onsubmit: submit },
          h("label", { for: "token" }, "Token"),
          field,
          note,
          h("button", { class: "primary" }, "Open"),
        ),
        h("p", { class: "hint" }, "To make one: ", h("code", {}, "holdall URL token create --allow read,watch,history")),
      ),
    );
    field.focus();
  });
}
