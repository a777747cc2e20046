// Put files that are dropped or pasted anywhere on the page into the input box. By default a browser would leave the
// page and open them.
(() => {
  const hand_over = (files) => {
    const input = document.querySelector("#box input[type=file]");
    if (!input || !files.length) return false;
    const kept = new DataTransfer();
    for (const file of files) kept.items.add(file);
    input.files = kept.files;
    input.dispatchEvent(new Event("change", { bubbles: true }));
    return true;
  };
  const is_elsewhere = (event) => !event.target?.closest?.("#box, #camera");
  document.addEventListener("dragover", (event) => {
    if (is_elsewhere(event) && event.dataTransfer?.types.includes("Files")) event.preventDefault();
  });
  document.addEventListener("drop", (event) => {
    if (is_elsewhere(event) && event.dataTransfer?.types.includes("Files")) {
      event.preventDefault();
      hand_over(event.dataTransfer.files);
    }
  });
  document.addEventListener("paste", (event) => {
    if (is_elsewhere(event) && event.clipboardData && hand_over(event.clipboardData.files)) event.preventDefault();
  });
})();

// Remove the escapes of escaping.py when a text is copied or edited.
(() => {
  const unescape_text = (text) => text.replace(/\u2064\\?/g, "");
  if (navigator.clipboard) {
    const write = navigator.clipboard.writeText.bind(navigator.clipboard);
    navigator.clipboard.writeText = (text) => write(unescape_text(String(text)));
  } else {
    // Browsers have no clipboard for pages without HTTPS, as on another machine of the network.
    const writeText = async (text) => {
      const area = document.createElement("textarea");
      area.value = unescape_text(String(text));
      area.setAttribute("readonly", "");
      area.style.cssText = "position: fixed; top: 0; opacity: 0";
      const focused = document.activeElement;
      document.body.append(area);
      area.select();
      const is_copied = document.execCommand("copy");
      area.remove();
      focused?.focus({ preventScroll: true });
      if (!is_copied) throw new Error("the browser does not copy");
    };
    Object.defineProperty(navigator, "clipboard", { value: { writeText } });
  }
  document.addEventListener("copy", (event) => {
    const text = document.getSelection()?.toString() ?? "";
    if (!text.includes("\u2064") || event.target?.closest?.("textarea, input")) return;
    event.clipboardData.setData("text/plain", unescape_text(text));
    event.preventDefault();
  });
  const clean_editors = () => {
    for (const editor of document.querySelectorAll("#chat textarea")) {
      if (!editor.value.includes("\u2064")) continue;
      editor.value = unescape_text(editor.value);
      editor.dispatchEvent(new Event("input", { bubbles: true }));
    }
  };
  new MutationObserver(clean_editors).observe(document, { childList: true, subtree: true });
})();

// Show the login page when the visitor's session has ended.
(() => {
  const fetch_any = window.fetch.bind(window);
  window.fetch = async (...request) => {
    const response = await fetch_any(...request);
    if (response.status === 401 && response.headers.has("x-seesay-login")) location.reload();
    return response;
  };
})();
