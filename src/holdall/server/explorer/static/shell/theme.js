// Light or dark: as the system is, until the reader chooses.

const KEY = "holdall-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

export function startTheme() {
  try {
    document.documentElement.dataset.theme = localStorage.getItem(KEY) ?? "";
  } catch {
    // storage may be blocked: the system's theme is used
  }
}

export function toggleTheme() {
  const chosen = document.documentElement.dataset.theme;
  const isDark = chosen ? chosen === "dark" : system.matches;
  document.documentElement.dataset.theme = isDark ? "light" : "dark";
  try {
    localStorage.setItem(KEY, document.documentElement.dataset.theme);
  } catch {
    // the choice is kept until the page is closed
  }
}
