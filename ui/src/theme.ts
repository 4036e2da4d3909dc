// Light or dark: as the system has it, unless it was chosen here, where the browser keeps anything.
export function isDark(): boolean {
  const held = document.documentElement.dataset["theme"];
  return held === undefined ? matchMedia("(prefers-color-scheme: dark)").matches : held === "dark";
}

export function setTheme(theme: "light" | "dark"): void {
  document.documentElement.dataset["theme"] = theme;
  localStorage.setItem("ravi-theme", theme);
}

/** Hold the theme that was chosen. */
export function holdTheme(): void {
  const held = localStorage.getItem("ravi-theme");
  if (held === "dark" || held === "light") document.documentElement.dataset["theme"] = held;
}
