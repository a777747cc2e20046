// The list of past conversations. `element` is its root, `props.value` the last record from the server; `watch` reports
// a new record, `trigger` sends a stored one back, `upload` puts a file on the server. Records and files are stored in
// IndexedDB. The session storage holds the id of this tab's conversation, so that it survives a reload.
const MAX_RECORDS = 100;
const CURRENT = "seesay-conversation";
const drawer = element.querySelector("dialog");
const list = element.querySelector("ul");

const done = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
const finished = (transaction) =>
  new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = transaction.onerror = () => reject(transaction.error);
  });

let opening = null;
const open_database = () => {
  opening ??= (() => {
    const request = indexedDB.open("seesay", 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("records", { keyPath: "id" });
      request.result.createObjectStore("files");
    };
    return done(request);
  })();
  return opening;
};
const read = async (store, key) => {
  const objects = (await open_database()).transaction(store).objectStore(store);
  return done(key === undefined ? objects.getAll() : objects.get(key));
};
const newest_first = (records) => records.sort((one, other) => other.changed - one.changed);
const files_of = (record) => record.turns.flatMap((turn) => turn.files);
const address_of = (path) => "gradio_api/file=" + path.split("/").map(encodeURIComponent).join("/");
const name_of = (path) => path.split("/").pop();

// --- store -----------------------------------------------------------------------------------------------------------

const remove = async (ids) => {
  const kept = (await read("records")).filter((record) => !ids.includes(record.id));
  const used = new Set(kept.flatMap(files_of));
  const transaction = (await open_database()).transaction(["records", "files"], "readwrite");
  for (const id of ids) transaction.objectStore("records").delete(id);
  const files = transaction.objectStore("files");
  for (const path of await done(files.getAllKeys())) if (!used.has(path)) files.delete(path);
  await finished(transaction);
};

const put = async (store, ...values) => {
  const transaction = (await open_database()).transaction(store, "readwrite");
  transaction.objectStore(store).put(...values);
  await finished(transaction);
};

// If the browser has no room left, delete the oldest conversations.
const put_with_room = async (id, ...values) => {
  for (;;) {
    try {
      return await put(...values);
    } catch (error) {
      const others = newest_first(await read("records")).filter((record) => record.id !== id);
      if (error?.name !== "QuotaExceededError" || !others.length) throw error;
      await remove([others.at(-1).id]);
    }
  }
};

const keep = async (record) => {
  if (!record.turns.length) return remove([record.id]);
  await put_with_room(record.id, "records", { ...record, changed: Date.now() });
  for (const path of files_of(record)) {
    if (await read("files", path)) continue;
    const response = await fetch(address_of(path));
    if (response.ok) await put_with_room(record.id, "files", await response.blob(), path);
  }
  const surplus = newest_first(await read("records")).slice(MAX_RECORDS);
  if (surplus.length) await remove(surplus.map((old) => old.id));
};

// Store records one at a time, in the order in which they came.
let last = Promise.resolve();
const in_turn = (work) => {
  last = last.then(work).catch((error) => console.warn("seesay: the conversation is not kept:", error));
  return last;
};

watch("value", () => {
  const record = props.value;
  if (!record) return;
  if (record.turns.length) sessionStorage.setItem(CURRENT, record.id);
  else sessionStorage.removeItem(CURRENT);
  in_turn(() => keep(record));
});

// --- restore ---------------------------------------------------------------------------------------------------------

// The server deletes uploads after a day. Upload the missing files again.
const find_or_upload = async (path) => {
  const response = await fetch(address_of(path), { method: "HEAD" });
  if (response.ok) return path;
  const blob = await read("files", path);
  return blob ? (await upload(new File([blob], name_of(path), { type: blob.type }))).path : path;
};

const bring_back = async (id) => {
  const record = await read("records", id);
  if (!record) return;
  const places = new Map();
  for (const path of new Set(files_of(record))) places.set(path, await find_or_upload(path));
  const turns = record.turns.map((turn) => ({ ...turn, files: turn.files.map((path) => places.get(path)) }));
  sessionStorage.setItem(CURRENT, id);
  trigger("select", { id, turns });
};

const current = sessionStorage.getItem(CURRENT);
if (current) in_turn(() => bring_back(current));
const leave = () => sessionStorage.removeItem(CURRENT);
document.addEventListener("seesay:new", leave);
document.addEventListener("seesay:sign-out", leave);

// --- the list --------------------------------------------------------------------------------------------------------

const make = (tag, className, text) => {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  if (tag === "button") made.type = "button";
  return made;
};

const format_date = (time) => {
  const date = new Date(time);
  const is_today = date.toDateString() === new Date().toDateString();
  return date.toLocaleString([], is_today ? { timeStyle: "short" } : { dateStyle: "medium" });
};

const make_entry = (record) => {
  const [first] = record.turns;
  const num_files = files_of(record).length;
  const facts = [format_date(record.changed), record.turns.length === 1 ? "1 question" : `${record.turns.length} questions`];
  if (num_files) facts.push(num_files === 1 ? "1 file" : `${num_files} files`);
  const entry = document.createElement("li");
  const choose = make("button", "seesay-entry", "");
  choose.append(
    make("span", "seesay-entry-title", first.text || first.files.map(name_of).join(", ")),
    make("span", "seesay-entry-facts", facts.join(" · ")),
  );
  if (record.id === sessionStorage.getItem(CURRENT)) choose.setAttribute("aria-current", "true");
  choose.addEventListener("click", () => {
    drawer.close();
    in_turn(() => bring_back(record.id));
  });
  const forget = make("button", "seesay-forget", "✕");
  forget.setAttribute("aria-label", `Delete: ${first.text || name_of(first.files[0])}`);
  forget.addEventListener("click", () => ask_and_remove([record.id], "Delete this conversation?"));
  entry.append(choose, forget);
  return entry;
};

const refresh = async () => {
  const records = newest_first(await read("records"));
  list.replaceChildren(...records.map(make_entry));
  element.querySelector(".seesay-none").hidden = records.length > 0;
  element.querySelector(".seesay-delete-all").hidden = records.length === 0;
};

const ask_and_remove = async (ids, question) => {
  if (!(await window.seesay.confirm(question))) return;
  await in_turn(() => remove(ids));
  if (ids.includes(sessionStorage.getItem(CURRENT))) {
    drawer.close();
    document.querySelector("#new-button")?.click();
  }
  await refresh();
};

element.querySelector(".seesay-open").addEventListener("click", () => {
  drawer.showModal();
  in_turn(refresh);
});
element.querySelector(".seesay-close").addEventListener("click", () => drawer.close());
drawer.addEventListener("click", (event) => {
  if (event.target === drawer) drawer.close();
});
element.querySelector(".seesay-delete-all").addEventListener("click", async () => {
  const ids = (await read("records")).map((record) => record.id);
  await ask_and_remove(ids, `Delete ${ids.length === 1 ? "the conversation" : `all ${ids.length} conversations`}?`);
});

// --- import ----------------------------------------------------------------------------------------------------------

const chooser = element.querySelector("input[type=file]");
element.querySelector(".seesay-import").addEventListener("click", () => chooser.click());
chooser.addEventListener("change", async () => {
  const [file] = chooser.files;
  chooser.value = "";
  if (!file) return;
  drawer.close();
  trigger("select", { path: (await upload(file)).path });
});
