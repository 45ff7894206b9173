// Sliders of a section: `show` runs when one moves, and when the language changes.
pagedkv.sliders = function (root, show) {
  const several = [...root.querySelectorAll("input")];
  for (const slider of several) slider.addEventListener("input", show);
  new MutationObserver(show).observe(document.documentElement, { attributes: true, attributeFilter: ["lang"] });
  return several;
};

// The value of a slider, beside its label.
pagedkv.writeSlider = function (slider, text) {
  pagedkv.write(slider.previousElementSibling, text);
  slider.setAttribute("aria-valuetext", text);
};
