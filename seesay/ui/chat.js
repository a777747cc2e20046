// Additions to Gradio's chat.
(() => {
  const on_change = (work) => {
    let is_planned = false;
    const plan = () => {
      if (is_planned) return;
      is_planned = true;
      requestAnimationFrame(() => {
        is_planned = false;
        work();
      });
    };
    new MutationObserver(plan).observe(document, { childList: true, subtree: true });
  };

  // --- scroll a new question into view, and then up with its answer until the question is at the top ---
  let num_questions = 0;
  let was_waiting = false;
  let followed = null;
  on_change(() => {
    const questions = document.querySelectorAll("#chat .user-row");
    const is_waiting = document.querySelector("#chat .seesay-wait") !== null;
    if (questions.length > num_questions || (is_waiting && !was_waiting)) followed = questions[questions.length - 1];
    num_questions = questions.length;
    was_waiting = is_waiting;
    if (followed?.isConnected) followed.scrollIntoView({ block: "start", behavior: "instant" });
  });
  for (const kind of ["wheel", "touchmove", "pointerdown", "keydown"]) {
    document.addEventListener(kind, (event) => event.target?.closest?.("#chat") && (followed = null), { passive: true });
  }

  // --- copy buttons: below answers, and for questions with pictures, whose strip holds the text as typed ---
  const COPY_ICON =
    '<svg viewBox="0 0 24 24" width="16" height="16" fill="none" stroke="currentColor" stroke-width="1.8" aria-hidden="true">' +
    '<rect x="9" y="9" width="11" height="11" rx="2"/><path d="M5 15V6a2 2 0 0 1 2-2h8"/></svg>';
  const add_copy_button = (wrapper) => {
    const question = wrapper.closest(".message-buttons")?.previousElementSibling?.querySelector("[data-question]");
    const present = wrapper.querySelector(".seesay-copy");
    const is_wanted = Boolean(question?.dataset.question) && !wrapper.querySelector('[aria-label="Cancel"]');
    if (present) present.dataset.copy = question?.dataset.question ?? "";
    if (is_wanted === Boolean(present)) return;
    if (present) return present.remove();
    const button = document.createElement("button");
    button.type = "button";
    button.className = "icon-button seesay-copy";
    button.title = "Copy";
    button.setAttribute("aria-label", "Copy message");
    button.innerHTML = COPY_ICON;
    button.dataset.copy = question.dataset.question;
    wrapper.prepend(button);
  };
  on_change(() => document.querySelectorAll("#chat .message-buttons-right .icon-button-wrapper").forEach(add_copy_button));
  document.addEventListener("click", async (event) => {
    const button = event.target?.closest?.(".seesay-copy");
    if (!button) return;
    await navigator.clipboard.writeText(button.dataset.copy);
    button.classList.add("seesay-copied");
    setTimeout(() => button.classList.remove("seesay-copied"), 1500);
  });

  // --- export button, beside the one that deletes the conversation ---
  on_change(() => {
    const panel = document.querySelector("#chat .icon-button-wrapper.top-panel");
    if (!panel || panel.querySelector(".seesay-export-button")) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "seesay-export-button";
    button.title = "Save this conversation as a file";
    button.textContent = "Export";
    button.addEventListener("click", () => document.dispatchEvent(new Event("seesay:export")));
    panel.prepend(button);
  });

  // --- accessible names and roles that Gradio leaves out ---
  on_change(() => {
    for (const editor of document.querySelectorAll("#chat textarea:not([aria-label])")) {
      editor.setAttribute("aria-label", "Edit the question");
      editor.focus({ preventScroll: true });
      requestAnimationFrame(() => editor.scrollIntoView({ block: "nearest" }));
    }
    for (const wide of document.querySelectorAll("#chat .prose :is(table, pre):not([tabindex])"))
      if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0; // arrow keys scroll what has the focus
    for (const examples of document.querySelectorAll('#chat .examples[role="list"]')) {
      examples.setAttribute("role", "group");
      examples.setAttribute("aria-label", "Examples");
    }
  });

  // --- Escape cancels an edit ---
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !event.target?.matches?.("#chat textarea")) return;
    event.preventDefault();
    document.querySelector('#chat [aria-label="Cancel"]')?.click();
  });

  // --- dialogs ---
  const open_dialog = (className, label) => {
    const dialog = document.createElement("dialog");
    dialog.className = className;
    dialog.setAttribute("aria-label", label);
    dialog.addEventListener("close", () => dialog.remove());
    document.querySelector(".gradio-container .contain").append(dialog); // whose style rules apply here
    dialog.showModal();
    return dialog;
  };
  const confirm = (question) =>
    new Promise((resolve) => {
      const dialog = open_dialog("seesay-confirm", question);
      dialog.innerHTML =
        '<p></p><form method="dialog"><button value="no">Keep</button><button value="yes" class="seesay-yes">Delete</button></form>';
      dialog.querySelector("p").textContent = question;
      dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"));
      dialog.querySelector("button").focus();
    });
  window.seesay = { confirm };

  // --- ask before clearing the conversation ---
  let is_confirmed = false;
  document.addEventListener(
    "click",
    async (event) => {
      const button = event.target?.closest?.('#chat [aria-label="Clear"]');
      if (!button || is_confirmed) return;
      event.stopImmediatePropagation();
      event.preventDefault();
      if (!(await confirm("Delete this conversation?"))) return;
      is_confirmed = true;
      button.click();
      is_confirmed = false;
    },
    true,
  );

  // --- pictures that the browser cannot show, and those that it enlarges ---
  document.addEventListener(
    "error",
    (event) => {
      const shot = event.target?.closest?.(".seesay-shot");
      if (!shot) return;
      shot.classList.add("seesay-broken");
      shot.disabled = true;
    },
    true, // error does not bubble
  );
  document.addEventListener("click", (event) => {
    const shot = event.target?.closest?.(".seesay-shot");
    if (!shot) return;
    const dialog = open_dialog("seesay-large", shot.title);
    const picture = document.createElement("img");
    picture.src = shot.querySelector("img").src;
    picture.alt = shot.title;
    const close = document.createElement("button");
    close.type = "button";
    close.className = "seesay-close";
    close.setAttribute("aria-label", "Close");
    close.textContent = "✕";
    dialog.append(picture, close);
    dialog.addEventListener("click", () => dialog.close());
  });
})();
