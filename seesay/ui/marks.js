// Links the marks in pictures with the words that say so, and times with the video (marks.py).
(() => {
  const indices = (element) => element.dataset.marks.split(" ");
  const light = (event, is_on) => {
    const mark = event.target?.closest?.("[data-marks]");
    const answer = mark?.closest(".seesay-marked");
    if (!answer) return;
    for (const other of answer.querySelectorAll(".seesay-lit")) other.classList.remove("seesay-lit");
    if (!is_on) return;
    const own = indices(mark);
    for (const other of answer.querySelectorAll("[data-marks]"))
      if (indices(other).some((index) => own.includes(index))) other.classList.add("seesay-lit");
  };
  for (const kind of ["pointerover", "focusin"]) document.addEventListener(kind, (event) => light(event, true));
  for (const kind of ["pointerout", "focusout"]) document.addEventListener(kind, (event) => light(event, false));

  document.addEventListener("click", (event) => {
    const time = event.target?.closest?.(".seesay-time");
    const video = [...document.querySelectorAll("#chat .seesay-strip video")]
      .filter((one) => time && one.getAttribute("src") === time.dataset.video)
      .at(-1);
    if (!video) return;
    const show = () => {
      video.pause();
      video.currentTime = Number(time.dataset.start);
    };
    if (video.readyState >= HTMLMediaElement.HAVE_METADATA) show();
    else {
      video.addEventListener("loadedmetadata", show, { once: true });
      video.load();
    }
    video.scrollIntoView({ block: "nearest", behavior: "smooth" });
  });
})();
