// The camera: sends frames of it through the page's WebSocket (live.py), and shows streamed answers with their times.
(() => {
  const FRAMES_PER_S = 2;
  const LONGEST_SIDE_PX = 640;
  const QUALITY = 0.85;
  const MAX_UNSENT_BYTES = 1 << 20; // of a connection that is slower than the camera

  let running = null; // { panel, stream, socket, started, timer, items, numbers }

  const find = (panel, name) => panel.querySelector(`.seesay-live-${name}`);
  const clock = (seconds) => `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;

  const say = (panel, text, is_fault = false) => {
    const note = find(panel, "note");
    note.textContent = text;
    note.classList.toggle("seesay-live-fault", is_fault);
  };

  const set_on = (panel, is_on) => {
    panel.classList.toggle("seesay-live-on", is_on);
    find(panel, "switch").textContent = is_on ? "Stop camera" : "Start camera";
    find(panel, "badge").hidden = !is_on;
    for (const control of find(panel, "form").elements) control.disabled = !is_on;
  };

  const stop = (text = "", is_fault = false) => {
    const { panel, stream, socket, timer, items } = running;
    running = null;
    clearInterval(timer);
    for (const track of stream.getTracks()) track.stop();
    socket?.close();
    panel.querySelector("video").srcObject = null;
    for (const item of items.values()) end_item(item, "The answer was cut.");
    set_on(panel, false);
    say(panel, text, is_fault);
  };

  const end_item = (item, text) => {
    const line = document.createElement("span");
    line.className = "seesay-line";
    line.textContent = text;
    item.append(line);
    item.scrollIntoView({ block: "nearest" });
  };

  const describe = (done) => {
    const seen = done.frames_s;
    const first = clock(seen[0] ?? 0), last = clock(seen.at(-1) ?? 0);
    const frames = seen.length === 1 ? `1 frame, at ${first}` : `${seen.length} frames, ${first} to ${last}`;
    const parts = [seen.length ? `Saw ${frames}` : "Saw no frame yet"];
    if (done.first_token_s != null) parts.push(`first token ${done.first_token_s.toFixed(2)} s`);
    if (done.finish_reason === "length") parts.push("cut at max tokens");
    return parts.join(" · ");
  };

  const hear = (session, message) => {
    const { panel, items } = session;
    const item = items.get(message.id);
    if (message.type === "frame") {
      session.taken += 1;
      find(panel, "badge").textContent = `${clock(message.time_s)} · ${message.num_frames} in view`;
      if (session.taken === 1) say(panel, "");
    } else if (message.type === "dropped") {
      say(panel, `${message.num_dropped} frames left out: they came faster than the model looks`);
    } else if (message.type === "answer.delta" && item) {
      item.querySelector(".seesay-live-answer").textContent += message.text;
      item.scrollIntoView({ block: "nearest" });
    } else if (message.type === "answer.done" && item) {
      item.querySelector(".seesay-live-answer").textContent = message.text;
      end_item(item, describe(message));
      items.delete(message.id);
    } else if (message.type === "error") {
      session.fault = message.error.message;
      if (item) {
        end_item(item, message.error.message);
        items.delete(message.id);
      } else say(panel, message.error.message, true);
    }
  };

  const read_settings = () => {
    const number = (name) => {
      const value = document.querySelector(`#${name} input[type=number]`)?.value;
      return value ? Number(value) : undefined;
    };
    return { temperature: number("temperature") ?? 0, max_tokens: number("max-tokens") };
  };

  const connect = (session) => {
    const url = new URL("seesay-live", document.baseURI);
    url.protocol = url.protocol.replace("http", "ws");
    url.search = url.hash = "";
    const socket = new WebSocket(url);
    session.socket = socket;
    socket.addEventListener("open", () => {
      const system = document.querySelector("#system-prompt textarea")?.value.trim();
      const model = document.querySelector("#model input")?.value;
      const given = { ...(system ? { system } : {}), ...(model ? { model } : {}) };
      if (Object.keys(given).length) socket.send(JSON.stringify({ type: "configure", ...given }));
      session.started = performance.now();
      session.timer = setInterval(() => send_frame(session), 1000 / FRAMES_PER_S);
      send_frame(session);
    });
    socket.addEventListener("message", (event) => running === session && hear(session, JSON.parse(event.data)));
    socket.addEventListener("close", () => {
      if (running === session) stop(session.fault || "The connection was lost.", true);
    });
  };

  const send_frame = (session) => {
    if (running !== session) return;
    const { panel, socket } = session;
    if (!panel.isConnected) return stop(); // it was closed
    const video = panel.querySelector("video");
    if (socket.readyState !== WebSocket.OPEN || video.readyState < 2 || session.is_drawing) return;
    if (socket.bufferedAmount > MAX_UNSENT_BYTES) return;
    const scale = Math.min(1, LONGEST_SIDE_PX / Math.max(video.videoWidth, video.videoHeight));
    const canvas = session.canvas;
    canvas.width = Math.max(1, Math.round(video.videoWidth * scale));
    canvas.height = Math.max(1, Math.round(video.videoHeight * scale));
    canvas.getContext("2d").drawImage(video, 0, 0, canvas.width, canvas.height);
    const time_s = (performance.now() - session.started) / 1000;
    session.is_drawing = true;
    canvas.toBlob((frame) => {
      session.is_drawing = false;
      if (running !== session || socket.readyState !== WebSocket.OPEN || !frame) return;
      socket.send(JSON.stringify({ type: "frame", time_s }));
      socket.send(frame);
    }, "image/jpeg", QUALITY);
  };

  const start = async (panel) => {
    say(panel, "Waiting for the camera …");
    let stream;
    try {
      if (!navigator.mediaDevices) throw new Error("Browsers give the camera to pages of HTTPS and localhost only.");
      const video = { facingMode: "environment", width: { ideal: 640 } };
      stream = await navigator.mediaDevices.getUserMedia({ video, audio: false });
    } catch (error) {
      const text = error.name === "NotAllowedError" ? "The browser does not allow the camera." : error.message;
      say(panel, text || "There is no camera.", true);
      return;
    }
    const canvas = document.createElement("canvas");
    running = { panel, stream, canvas, items: new Map(), number: 0, taken: 0, fault: "", is_drawing: false };
    const video = panel.querySelector("video");
    video.srcObject = stream;
    await video.play().catch(() => {});
    set_on(panel, true);
    say(panel, "Connecting …");
    connect(running);
    find(panel, "form").elements[0].focus();
  };

  document.addEventListener("click", (event) => {
    const panel = event.target.closest?.(".seesay-live-switch")?.closest(".seesay-live");
    if (panel) running ? stop() : start(panel);
  });

  document.addEventListener("submit", (event) => {
    if (!event.target.matches?.(".seesay-live-form")) return;
    event.preventDefault();
    const input = event.target.elements[0];
    const text = input.value.trim();
    if (!text || running?.socket?.readyState !== WebSocket.OPEN) return;
    input.value = "";
    const id = `q${(running.number += 1)}`;
    const item = document.createElement("li");
    for (const [name, content] of [["question", text], ["answer", ""]]) {
      const line = document.createElement("p");
      line.className = `seesay-live-${name}`;
      line.textContent = content;
      item.append(line);
    }
    find(running.panel, "answers").append(item);
    item.scrollIntoView({ block: "nearest" });
    running.items.set(id, item);
    running.socket.send(JSON.stringify({ type: "ask", text, id, ...read_settings() }));
  });
})();
