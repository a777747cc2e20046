// The theme that the visitor chose: light, dark, or (system) that of the device. Gradio knows the device's only, which it
// sets as a class of the body.
(() => {
  const KEY = "seesay-theme";
  const device = window.matchMedia("(prefers-color-scheme: dark)");
  const read = () => {
    try {
      const found = localStorage.getItem(KEY);
      return ["light", "dark"].includes(found) ? found : "system";
    } catch {
      return "system"; // the browser stores nothing
    }
  };
  let chosen = read();
  const apply = () => {
    const is_dark = chosen === "system" ? device.matches : chosen === "dark";
    document.documentElement.style.colorScheme = is_dark ? "dark" : "light";
    if (document.body.classList.contains("dark") !== is_dark) document.body.classList.toggle("dark", is_dark);
    for (const input of document.querySelectorAll('input[name="seesay-theme"]')) input.checked = input.value === chosen;
  };
  new MutationObserver(apply).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  device.addEventListener("change", apply);
  window.addEventListener("storage", (event) => {
    if (event.key !== KEY) return;
    chosen = read();
    apply();
  });
  document.addEventListener("change", (event) => {
    if (event.target.name !== "seesay-theme") return;
    chosen = event.target.value;
    try {
      localStorage.setItem(KEY, chosen);
    } catch {
      // it holds until the page is closed
    }
    apply();
  });
  document.addEventListener("seesay:theme", apply); // the switch has appeared
  apply();
})();
