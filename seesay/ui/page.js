// Files that are dropped or pasted anywhere on the page go to the input box; a browser would otherwise leave the page
// and open them.
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
