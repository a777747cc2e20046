// Draws the frames of the videos in a panel when it is opened. A browser that cannot play a video leaves their times.
(() => {
  const SHOWN_MS = 300;
  const LATE_S = 0.003; // times are rounded, and the frame of a time must not be the one before
  const LONGEST_MS = 20_000;

  const reach = (video, name, act) =>
    new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`no ${name}`)), LONGEST_MS);
      const end = (settle) => () => (clearTimeout(timer), settle());
      video.addEventListener(name, end(resolve), { once: true });
      video.addEventListener("error", end(() => reject(video.error)), { once: true });
      act();
    });

  // A browser may say that it has sought before it shows the frame that it sought.
  const present = (video) =>
    new Promise((resolve) => {
      video.requestVideoFrameCallback?.(resolve);
      setTimeout(resolve, video.requestVideoFrameCallback ? SHOWN_MS : 0);
    });

  const draw = async (strip) => {
    const video = document.createElement("video");
    Object.assign(video, { muted: true, playsInline: true, preload: "auto" });
    try {
      await reach(video, "loadeddata", () => (video.src = strip.dataset.video));
      const times = JSON.parse(strip.dataset.times);
      for (const [number, canvas] of strip.querySelectorAll("canvas").entries()) {
        if (!canvas.isConnected) return;
        const shown = present(video);
        await reach(video, "seeked", () => (video.currentTime = times[number] + LATE_S));
        await shown;
        const scale = Math.min(1, 320 / Math.max(video.videoWidth, video.videoHeight));
        canvas.width = Math.max(1, Math.round(video.videoWidth * scale));
        canvas.height = Math.max(1, Math.round(video.videoHeight * scale));
        canvas.getContext("2d").drawImage(video, 0, 0, canvas.width, canvas.height);
        canvas.classList.add("seesay-drawn");
      }
    } catch {
      strip.classList.add("seesay-undrawn");
      strip.nextElementSibling.textContent = "This browser cannot play the video: the times of its frames.";
    } finally {
      video.removeAttribute("src");
      video.load();
    }
  };

  document.addEventListener(
    "toggle",
    async (event) => {
      if (!event.target.open || !event.target.matches?.(".seesay-details")) return;
      for (const strip of event.target.querySelectorAll(".seesay-frames:not([data-begun])")) {
        strip.dataset.begun = "";
        await draw(strip);
      }
    },
    true, // toggle does not bubble
  );
})();
