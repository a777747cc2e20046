// Saves the conversation as a file. `element` is the root of the dialog, `props.value` the file that the server wrote;
// `watch` reports a new one, `trigger` asks for it.
const dialog = element.querySelector("dialog");
document.addEventListener("seesay:export", () => dialog.showModal());
dialog.addEventListener("click", (event) => {
  const chosen = event.target.closest(".seesay-format");
  if (chosen) trigger("select", { format: chosen.value });
  if (chosen || event.target === dialog) dialog.close();
});
watch("value", () => {
  if (!props.value) return;
  const link = document.createElement("a");
  link.href = props.value.address;
  link.download = props.value.name;
  document.body.append(link);
  link.click();
  link.remove();
});
